"""Gemma 4: heads of two widths, keys and values that blocks share, an input for each block.

    x = sqrt(C) W_e[token]
    x += rmsnorm(W_o attention(rotate(rmsnorm(W_q n)), rotate(rmsnorm(k)), u(v)))  n = rmsnorm(x)
    x += rmsnorm(h)             h = W_down (gelu(W_gate n) * W_up n),              n = rmsnorm(x)
    x += rmsnorm(W_proj (gelu(W_inp x) * e))
    x *= block_scale

k = W_k n, v = W_v n; u normalises a head without a gain. Scores are not divided. Blocks with a
window have heads of head_dim channels. The other blocks have heads of full_head_dim channels; their
first rope_channels / 2 pairs rotate, by the frequencies of whole heads, and with k_as_v, v = k. The
last shared_kv blocks have no k and v. They read k and v of the last block of their kind that has
both, and their MLP may be twice as wide. Then e is a stretch of per_layer numbers of this sum:

    (rmsnorm(W_model x / sqrt(C)) + sqrt(P) W_p[token]) / sqrt(2)       x as embedded, P = per_layer

With experts, h is rmsnorm_1(MLP(n)) + rmsnorm_2(mixture(rmsnorm_2(x))). The router sees
scale u(x) / sqrt(C). The weight of an expert is its share in the softmax of the chosen experts,
times a factor of its own. Gains are as in folders, not 1 + w. The last block has no window.
Source: Gemma Team 2026, gemma4 of transformers and of llama.cpp.
"""

from dataclasses import replace
from math import sqrt
from typing import Any

from toynn.graph.tape import Tensor
from toynn.models.gemma4_files import APART, LOCAL, SCALE, Gemma4Config, Gemma4Files
from toynn.models.keys import EPS, FREQ_BASE, KEY, LOGITS
from toynn.models.mixture import EXPERT_WIDTH, EXPERTS, USED
from toynn.models.registry import register
from toynn.models.rows import EMBEDDING, LAYER, MLP, OUTPUT
from toynn.models.sharing import FOR_ALL, FOR_BLOCK, HEADS
from toynn.models.tables import Row, Sizes, experts, norm, router
from toynn.nn import Layers
from toynn.options import RecipeOptions

__all__ = ["Gemma4", "Gemma4Config"]


class Gemma4(Gemma4Files):
    """The architecture."""

    narrows = True
    table = (
        *EMBEDDING,
        *FOR_ALL,
        *HEADS,
        *MLP,
        router("blk.{n}.ffn_gate_inp", "N C", f"{LAYER}.router.proj", when="N"),
        norm("blk.{n}.ffn_gate_inp.scale", "C", f"{LAYER}.router.scale", bare=True, when="N"),
        experts(
            "blk.{n}.ffn_gate_up_exps", "N 2M C", f"{LAYER}.experts.gate_up_proj", when="stacked"
        ),
        *(
            experts(name, "N M C", f"{LAYER}.experts.gate_up_proj[{i}/2]", when="apart")
            for i, name in enumerate(APART)
        ),
        experts("blk.{n}.ffn_down_exps", "N C M", f"{LAYER}.experts.down_proj", when="N"),
        norm(
            "blk.{n}.ffn_down_exps.scale", "N", f"{LAYER}.router.per_expert_scale",
            bare=True, when="N",
        ),
        norm("blk.{n}.post_ffw_norm_1", "C", f"{LAYER}.post_feedforward_layernorm_1", when="N"),
        norm("blk.{n}.pre_ffw_norm_2", "C", f"{LAYER}.pre_feedforward_layernorm_2", when="N"),
        norm("blk.{n}.post_ffw_norm_2", "C", f"{LAYER}.post_feedforward_layernorm_2", when="N"),
        norm("blk.{n}.post_ffw_norm", "C", f"{LAYER}.post_feedforward_layernorm"),
        *FOR_BLOCK,
        Row(SCALE, "1", f"{LAYER}.layer_scalar", "norm", bare=True, when=False),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )  # fmt: skip

    def __init__(self, name: str, title: str, model_type: str) -> None:
        super().__init__(name, title)
        left_out = (KEY, FREQ_BASE)
        activation = "gelu_pytorch_tanh"
        self.hf = replace(
            self.hf,
            keys={
                **{key: hf for key, hf in self.hf.keys.items() if key not in left_out},
                LOCAL: "head_dim",
                LOGITS: LOGITS,
                EXPERTS: "num_experts",
                USED: "top_k_experts",
                EXPERT_WIDTH: "moe_intermediate_size",
            },
            real=frozenset((EPS, LOGITS)),
            optional=frozenset((LOGITS, EXPERTS, USED, EXPERT_WIDTH)),
            fixed={
                "attention_bias": (False,),
                "hidden_activation": (activation,),
                "use_bidirectional_attention": (None, "vision"),  # of pictures
            },
            shown={"architectures": [f"{title}ForCausalLM"], "hidden_activation": activation},
            tied=True,
            biases={},
            zero_biases=frozenset(),
            bare=frozenset(("experts.gate_up_proj", "experts.down_proj")),
            model_type=model_type,
        )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        sizes = {**super().sizes(cfg, opts, n), "P": cfg.per_layer}
        sizes |= {"LP": cfg.n_layers * cfg.per_layer}
        sizes |= {"stacked": cfg.n_experts and not cfg.experts_apart, "apart": cfg.experts_apart}
        sizes |= {"N": cfg.n_experts, "M": cfg.expert_d_ff, "2M": 2 * cfg.expert_d_ff}
        if n is None:
            return sizes
        full, has = not cfg.windowed[n], not cfg.shares(n)
        D = cfg.width_of(full)
        sizes |= {"D": D, "Q": cfg.n_heads * D, "KV": cfg.heads(full) * D, "F": cfg.widths()[n]}
        return sizes | {"has_k": has, "has_v": has and not (full and cfg.k_as_v)}

    # -- Forward -------------------------------------------------------------------------------

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        x = layers.scale(self.embed(layers, cfg, tokens), sqrt(cfg.d_model))
        inputs = self.inputs(layers, cfg, tokens, x) if cfg.per_layer else None
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            normed = block.rmsnorm(x, "attn_norm", cfg.norm_eps)
            heads = self.heads(block, cfg, n, normed, positions, kept)
            x = block.residual(x, block.rmsnorm(heads, "post_attention_norm", cfg.norm_eps))
            wide = self.feed_forward(block, cfg, x)
            x = block.add(x, block.rmsnorm(wide, "post_ffw_norm", cfg.norm_eps))
            if inputs is not None:
                x = block.add(x, self.added(block, cfg, n, x, inputs))
            x = block.scale(x, cfg.block_scales[n] if cfg.block_scales else 1.0)
        return x

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the MLP of x (B T, C), and the experts beside it, each behind its norm."""
        eps = cfg.norm_eps
        h = block.geglu(block.rmsnorm(x, "ffn_norm", eps), "ffn_gate", "ffn_up", "ffn_down")
        if not cfg.n_experts:
            return h
        seen = block.scale(block.rmsnorm(x, "ffn_gate_inp.scale", eps), cfg.d_model**-0.5)
        routes = block.routes(
            seen,
            "ffn_gate_inp",
            cfg.n_experts_used,
            normalized=True,
            factors="ffn_down_exps.scale",
        )
        normed = block.rmsnorm(x, "pre_ffw_norm_2", eps)
        up = "ffn_up_exps" if cfg.experts_apart else ""
        gate = "ffn_gate_exps" if up else "ffn_gate_up_exps"
        y = block.geglu_mixture(normed, gate, up, "ffn_down_exps", routes)
        h = block.rmsnorm(h, "post_ffw_norm_1", eps)
        return block.add(h, block.rmsnorm(y, "post_ffw_norm_2", eps))

    def used(self, cfg: Any) -> float:
        """Return which part of its experts a token uses."""
        return float(cfg.n_experts_used / cfg.n_experts) if cfg.n_experts else 1.0


register(Gemma4("gemma4", "Gemma4", "gemma4_text"))
