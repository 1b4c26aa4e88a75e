"""OLMo 2: a Llama whose norms stand behind attention and MLP, and over all of q and of k.

    x += rmsnorm(W_o attention(rotate(rmsnorm(W_q x)), rotate(rmsnorm(W_k x)), W_v x))
    x += rmsnorm(W_down (silu(W_gate x) * W_up x))

The norms of q and k take all heads at once. RoPE rotates channels half a head apart.
Source: OLMo Team 2025, arXiv:2501.00656, section 2.
"""

from typing import Any

from toynn.graph.tape import Tensor
from toynn.models.llama import Llama, LlamaConfig, check_exported_heads
from toynn.models.registry import register
from toynn.models.rows import EMBEDDING, MLP, OUTPUT, QKV
from toynn.models.table import by_width, matrix, norm
from toynn.nn import Layers

__all__ = ["Olmo2"]

_LAYER = "model.layers.{n}"


class Olmo2(Llama):
    """The architecture."""

    biases_are_fixed = "have no"
    table = (
        *EMBEDDING,
        *QKV,
        norm("blk.{n}.attn_q_norm", "Q", f"{_LAYER}.self_attn.q_norm"),
        norm("blk.{n}.attn_k_norm", "KV", f"{_LAYER}.self_attn.k_norm"),
        matrix("blk.{n}.attn_output", "C Q", f"{_LAYER}.self_attn.o_proj", std=by_width),
        norm("blk.{n}.post_attention_norm", "C", f"{_LAYER}.post_attention_layernorm"),
        *MLP,
        norm("blk.{n}.post_ffw_norm", "C", f"{_LAYER}.post_feedforward_layernorm"),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    narrows = True

    def write(self, cfg: LlamaConfig) -> dict[str, Any]:
        """Return the hyper-parameters of a file; ConfigError for what files have no place for."""
        check_exported_heads(cfg)
        return super().write(cfg)

    def forward(
        self, layers: Layers, cfg: LlamaConfig, tokens: Tensor, positions: Tensor
    ) -> Tensor:
        """Record the embeddings and the blocks."""
        x = self.embed(layers, cfg, tokens)
        for block in layers.blocks(cfg.n_layers):
            heads = self.attention(block, cfg, x, positions)
            x = block.residual(x, block.rmsnorm(heads, "post_attention_norm", cfg.rms_eps))
            wide = block.swiglu(x, "ffn_gate", "ffn_up", "ffn_down")
            x = block.add(x, block.rmsnorm(wide, "post_ffw_norm", cfg.rms_eps))
        return x


register(Olmo2("olmo2", "Olmo2", head_norms=True))
