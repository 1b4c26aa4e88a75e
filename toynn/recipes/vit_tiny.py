"""A vision transformer, by default ViT-Tiny, from random weights or from those of a file."""

from os import PathLike
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.options import RecipeOptions
from toynn.recipes._recipe import Recipe
from toynn.system.critical import uninterrupted

__all__ = ["VitTiny"]


class VitTiny(Recipe[ViTEngine]):
    """Train a classifier of pictures. Its hp rows can be those of either convention of AdamW."""

    def __init__(self, backend: str = "cpu") -> None:
        super().__init__(ViTEngine(backend))

    def realize(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step.

        Consumes seed, init_scale, t_batch, checkpointing and decay.

        t_batch is the number of pictures planned for; steps can have any other.
        """
        self._check_new("realize")
        with self._whole():
            self.engine.realize_for_random_init(cfg, opts)
            self._build()

    def realize_from(
        self,
        path: str | PathLike[str],
        opts: RecipeOptions | None = None,
        **told: Any,
    ) -> None:
        """Start from a safetensors file, toynn's or timm's; compile the step.

        Consumes t_batch, checkpointing and decay, and the seed where another number of classes, or
        names that are not the file's, need a new head. ``told`` is as ViTEngine.load has it:
        classes, image, n_heads, act, norm_eps, class_names.
        """
        self._check_new("realize_from")
        self.engine = ViTEngine.load(path, opts, **told, backend=self.engine.backend)
        self._show()

    @uninterrupted
    def step(
        self,
        image: ArrayLike,
        cls_idx: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update. See ViTEngine.step."""
        self._check_built("step")
        loss = self.engine.step(image, cls_idx, labels, hp, is_first)
        self.step_index += 1
        return loss

    def accumulate(self, image: ArrayLike, cls_idx: ArrayLike | None, labels: ArrayLike) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        self._check_built("accumulate")
        return self.engine.accumulate(image, cls_idx, labels)

    def evaluate(self, image: ArrayLike, cls_idx: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch, and change nothing."""
        self._check_built("evaluate")
        return self.engine.evaluate(image, cls_idx, labels)

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a safetensors file, by timm's names. See ViTEngine.save."""
        self.engine.save(path, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model into the folder of a run, as model.safetensors."""
        self.save(folder / "model.safetensors", overwrite=True)
