"""The Llama family's engine, under the upstream names. The model is toynn/models/llama.py."""

from toynn.engines.sequence import SequenceEngine
from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.models import LlamaConfig

__all__ = ["LlamaConfig", "LlamaSeqEngine"]


class LlamaSeqEngine(SequenceEngine[LlamaConfig]):
    """A Llama-like model and its training step.

    Each step rounds the matrices to ``weight_dtype`` before it multiplies by them, and trains the
    float32 originals. The embedding table, biases and gains are not rounded.
    """

    config_type = LlamaConfig

    @property
    def t_seq_token_ids(self) -> Tensor:
        """The input of token ids, once the training step is built."""
        return self._check_built("t_seq_token_ids").tokens

    @property
    def t_seq_positions(self) -> Tensor:
        """The input of positions, once the training step is built."""
        return self._check_built("t_seq_positions").positions

    @property
    def t_seq_token_embed(self) -> Tensor:
        """The donor's embedding table (vocab, donor_d_in), or the model's without a projection.

        Raises ConfigError where there is none.
        """
        return self._tensor("token_embd.weight")

    @property
    def t_seq_w_proj(self) -> Tensor:
        """The input projection (d_model, donor_d_in). Raises ConfigError if there is none."""
        return self._tensor("lens.proj.weight")

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ConfigError(f"LlamaSeqEngine: there is no {name}: donor_d_in is 0")
        return self.tensors[name]
