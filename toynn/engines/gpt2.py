"""GPT-2's engine, under the upstream names. The model is toynn/models/gpt2.py."""

from toynn.engines.sequence import SequenceEngine
from toynn.models import GPT2Config
from toynn.options import RecipeOptions

__all__ = ["GPT2Config", "GPT2SeqEngine"]


class GPT2SeqEngine(SequenceEngine[GPT2Config]):
    """A GPT-2 model and its training step."""

    LN_EPS = 1e-5  # GPT2Config.norm_eps, unless a file says otherwise

    config_type = GPT2Config

    def realize(
        self,
        vocab: int,
        d_model: int,
        n_heads: int,
        d_ff: int,
        n_layers: int,
        context: int,
        seed: int,
    ) -> None:
        """Build the training step with T = context, B = 1 and weights from the LCG stream."""
        cfg = GPT2Config(vocab, d_model, n_heads, d_ff, n_layers, context, init="lcg")
        self.realize_for_random_init(cfg, RecipeOptions(seed=seed))
        self.build_training_step()

    def build_train_step(self) -> None:
        """Record backward and AdamW, and compile: the upstream name of ``build_update``."""
        self.build_update()
