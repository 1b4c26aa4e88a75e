"""Engines by the names of the reference program; SequenceEngine does all that they do."""

from toynn.engines.sequence import SequenceEngine
from toynn.models import GPT2Config, LlamaConfig
from toynn.options import RecipeOptions

__all__ = ["GPT2Config", "GPT2SeqEngine", "LlamaConfig", "LlamaSeqEngine"]


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
        self._realize(cfg, RecipeOptions(seed=seed))

    def build_train_step(self) -> None:
        """Record backward and AdamW, and compile: another name of ``build_update``."""
        self.build_update()


class LlamaSeqEngine(SequenceEngine[LlamaConfig]):
    """A Llama-like model and its training step.

    Each step rounds the matrices to ``weight_dtype`` before it multiplies by them, and trains the
    float32 originals. The embedding table, biases and gains are not rounded.
    """

    config_type = LlamaConfig
