"""A vision transformer, by default ViT-Tiny, from random weights or from those of a file."""

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
    """Train a classifier of pictures. Its hp rows can be those of either convention of AdamW."""

    _kind = ViTEngine

    def realize(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step.

        Consumes all options that are not of text.

        t_batch is the number of pictures planned for; steps can have any other.
        """
        self._realize(cfg, opts)

    def realize_from(
        self,
        path: str | PathLike[str],
        opts: RecipeOptions | None = None,
        **told: Any,
    ) -> None:
        """Start from a safetensors file, toynn's or timm's; compile the step.

        Consumes what ``realize`` does, but init_scale; and the seed where another number of
        classes, or names that are not the file's, need a new head. ``told`` is as ViTEngine.load
        has it: classes, image, n_heads, act, norm_eps, class_names.
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
        """Write the model as a safetensors file, by timm's names. See ViTEngine.save."""
        self.engine.save(path, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model into the folder of a run, as model.safetensors."""
        self.save(folder / "model.safetensors", overwrite=True)
