"""A vision transformer, by default ViT-Tiny, from random weights or from a file."""

from os import PathLike
from typing import Any

from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.options import RecipeOptions


class VitTiny(ViTEngine):
    """Train a classifier of pictures. hp rows may follow either convention of AdamW."""

    _declared_by = _built_by = "realize"

    def realize(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step.

        Consumes all options but those for text. t_batch is the number of pictures that memory is
        planned for; a step may have another number.
        """
        self._realize(cfg, opts)

    def realize_from(
        self, path: str | PathLike[str], opts: RecipeOptions | None = None, **told: Any
    ) -> None:
        """Start from a safetensors file, toynn's or timm's; compile the step.

        Consumes the options that ``realize`` does, except init_scale. The seed is used if the head
        is new, because the number of classes or their names differ from the file's. ``told`` are
        arguments of ViTEngine.read: classes, image, n_heads, act, norm_eps, class_names.
        """
        with self._realizing("realize_from"):
            self.read(path, opts, **told)
