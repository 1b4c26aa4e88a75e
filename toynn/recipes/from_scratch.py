"""A Llama-like model from random weights."""

from toynn.engines.llama import LlamaConfig, LlamaSeqEngine
from toynn.options import RecipeOptions
from toynn.recipes._sequence import FullRecipe

__all__ = ["FromScratch"]


class FromScratch(FullRecipe[LlamaSeqEngine]):
    """Train a Llama-like model from random weights.

    Its hp rows are AdamW.for_from_scratch()'s: the update without bias correction.
    """

    def __init__(self, backend: str = "cpu") -> None:
        super().__init__(LlamaSeqEngine(backend))

    def realize(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step; consumes all options."""
        self._check_new("realize")
        with self._whole():
            self.engine.realize_for_random_init(cfg, opts)
            self._build()
