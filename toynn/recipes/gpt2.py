"""GPT-2 from random weights."""

from toynn.engines.gpt2 import GPT2Config, GPT2SeqEngine
from toynn.options import RecipeOptions
from toynn.recipes._sequence import FullRecipe

__all__ = ["GPT2"]


class GPT2(FullRecipe[GPT2SeqEngine]):
    """Train a GPT-2 model from random weights.

    Its hp rows are AdamW.for_lora()'s: the update with bias correction.
    """

    def __init__(self, backend: str = "cpu") -> None:
        super().__init__(GPT2SeqEngine(backend))

    def realize(self, cfg: GPT2Config, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step; consumes t_seq, t_batch, seed, init_scale."""
        self._check_new("realize")
        with self._whole():
            self.engine.realize_for_random_init(cfg, opts)
            self._build()
