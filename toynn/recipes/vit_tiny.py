"""A vision transformer, by default ViT-Tiny, from random weights or from those of a file."""

from numpy.typing import ArrayLike

from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.options import RecipeOptions
from toynn.recipes._recipe import Recipe

__all__ = ["VitTiny"]


class VitTiny(Recipe[ViTEngine]):
    """Train a classifier of pictures. Its hp rows can be those of either convention of AdamW."""

    def __init__(self, backend: str = "cpu") -> None:
        super().__init__(ViTEngine(backend))

    def realize(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step; consumes seed, init_scale and t_batch.

        t_batch is the number of pictures planned for; steps can have any other.
        """
        self.engine.realize_for_random_init(cfg, opts)
        self._build()

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
