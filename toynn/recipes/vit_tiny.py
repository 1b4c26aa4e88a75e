"""A vision transformer, by default ViT-Tiny, from random weights or from a file."""

from os import PathLike
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from toynn.data.batch import Batch
from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.options import RecipeOptions
from toynn.recipes._recipe import Recipe

__all__ = ["VitTiny"]


class VitTiny(Recipe[ViTEngine]):
    """Train a classifier of pictures. hp rows may follow either convention of AdamW."""

    _kind = ViTEngine

    def realize(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step.

        Consumes all options but those for text. t_batch is the number of pictures that memory is
        planned for; a step may have another number.
        """
        self._realize(cfg, opts)

    def realize_from(
        self,
        path: str | PathLike[str],
        opts: RecipeOptions | None = None,
        **told: Any,
    ) -> None:
        """Start from a safetensors file, toynn's or timm's; compile the step.

        Consumes the options that ``realize`` does, except init_scale. The seed is used if the head
        is new, because the number of classes or their names differ from the file's. ``told`` are
        arguments of ViTEngine.load: classes, image, n_heads, act, norm_eps, class_names.
        """
        self._check_new("realize_from")
        self.engine = ViTEngine.load(path, opts, **told, backend=self.engine.backend)

    def step(
        self,
        image: ArrayLike,
        cls_idx: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update. See ViTEngine.step."""
        return self.train(Batch(image, cls_idx, labels), hp, is_first)

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a safetensors file with timm's names. See ViTEngine.save."""
        self.engine.save(path, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as model.safetensors."""
        self.save(folder / "model.safetensors", overwrite=True)
