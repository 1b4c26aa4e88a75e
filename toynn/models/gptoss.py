"""gpt-oss: a mixture of experts with biases, attention with sinks, windows in every other block.

    x += W_o attention(rotate(W_q n), rotate(W_k n), W_v n) + b_o        n = rmsnorm(x)
    x += sum_j w_j (W_down,e_j h_j + b_down,e_j)                     n = rmsnorm(x)
    h_j = g s(1.702 g) (u + 1)     g = min(W_gate,e_j n + b, 7),  u = W_up,e_j n + b within -7 .. 7

Every matrix has a bias. Each head has a sink: one more score, for a key without a value. In even
blocks a query sees its last ``window`` keys only. w is the softmax of the chosen experts' scores.
It equals their shares in the softmax of all scores. RoPE rotates channels half a head apart, and
YaRN stretches it.
In a folder of Hugging Face, gate and up are the even and odd columns of one matrix, and the
experts' matrices are (in, out). Such a folder may also hold them as blocks and scales of MXFP4.
Source: OpenAI 2025, arXiv:2508.10925, section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_sizes
from toynn.models.hyper import Hyper
from toynn.models.keys import PATTERN, WIDTH, WINDOW
from toynn.models.mixture import EXPERT_WIDTH, EXPERTS, USED, Mixture, MixtureConfig
from toynn.models.registry import register
from toynn.models.rope import factors_of, rope_scaling
from toynn.models.rows import EMBEDDING, LAYER, OUTPUT
from toynn.models.tables import Floats, Row, experts, matrix, norm, router
from toynn.nn import Layers
from toynn.options import RecipeOptions

ALPHA, LIMIT = 1.702, 7.0  # fixed in llama.cpp; GGUF has no keys for them
_MLP = f"{LAYER}.mlp.experts"
_PERIOD = 2  # the first of every 2 blocks has a window
_BASE = 150000.0  # of RoPE, where config.json does not say


@dataclass(frozen=True)
class GptOssConfig(MixtureConfig):
    """Shape of a gpt-oss. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    window
        Keys that a query sees, its own included, in even blocks.
    """

    arch: str = "gpt-oss"
    window: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window")


def _kinds(n_layers: int) -> list[str]:
    """Return config.json's layer_types: which blocks have a window."""
    return ["full_attention" if n % _PERIOD else "sliding_attention" for n in range(n_layers)]


class GptOss(Mixture):
    """The architecture."""

    config_type = GptOssConfig
    needs_head = True
    biases_are_fixed = "always have"
    mlp_norm = "post_attention_norm"
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        matrix("blk.{n}.attn_q", "Q C", f"{LAYER}.self_attn.q_proj", bias=True),
        matrix("blk.{n}.attn_k", "KV C", f"{LAYER}.self_attn.k_proj", bias=True),
        matrix("blk.{n}.attn_v", "KV C", f"{LAYER}.self_attn.v_proj", bias=True),
        matrix("blk.{n}.attn_output", "C Q", f"{LAYER}.self_attn.o_proj", bias=True),
        Row("blk.{n}.attn_sinks", "H", f"{LAYER}.self_attn.sinks", "sinks"),
        norm("blk.{n}.post_attention_norm", "C", f"{LAYER}.post_attention_layernorm"),
        router("blk.{n}.ffn_gate_inp", "N C", f"{LAYER}.mlp.router", bias=True),
        experts("blk.{n}.ffn_gate_exps", "N F C", f"{_MLP}.gate_up_proj[0:2T]", bias=True),
        experts("blk.{n}.ffn_up_exps", "N F C", f"{_MLP}.gate_up_proj[1:2T]", bias=True),
        experts("blk.{n}.ffn_down_exps", "N C F", f"{_MLP}.down_proj[0:1T]", bias=True),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    hf = replace(
        Mixture.hf,
        model_type="gpt_oss",
        keys={
            **Mixture.hf.keys,
            EXPERTS: "num_local_experts",
            USED: "num_experts_per_tok",
            WINDOW: "sliding_window",
        },
        fixed={
            **Mixture.hf.fixed,
            "swiglu_alpha": (ALPHA,),
            "swiglu_limit": (LIMIT,),
        },
        biases={},
        zero_biases=frozenset(),
        bare=frozenset(("self_attn.sinks", "experts.gate_up_proj", "experts.down_proj")),
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Mapping[str, int]:
        """Return the values of the table's letters and conditions."""
        return {**super().sizes(cfg, opts, n), "H": cfg.n_heads}

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        hyper.expect(PATTERN, _PERIOD)
        width, window = hyper.whole(EXPERT_WIDTH, cfg.d_ff), hyper.whole(WINDOW)
        cfg = replace(cfg, d_ff=width, window=window, output_bias=False)  # the table always has it
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {EXPERT_WIDTH: cfg.d_ff, WINDOW: cfg.window}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE and windows."""
        config.ignore("initial_context_length", "experts_per_token", "router_aux_loss_coef")
        factors = factors_of(config, hyper, _BASE)
        if factors is not None:
            config.refuse("RoPE must be default, linear or yarn; got llama3")
        kinds, count = config.get("layer_types"), hyper.get("block_count", 0)
        listed = kinds if isinstance(kinds, list) else []
        if kinds is not None and (listed != _kinds(len(listed)) or len(listed) < count):
            config.refuse(
                f"layer_types must be sliding_attention in every other layer; got {kinds!r}"
            )
        hyper.setdefault(EXPERT_WIDTH, hyper.get(WIDTH, 1))
        quantized = config.get("quantization_config") or {}
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        if quantized and method != "mxfp4":
            config.refuse(
                f"quantization_config must be an object with quant_method mxfp4; got {quantized!r}"
            )
        return {}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE's scaling and for windows."""
        rope = rope_scaling(hyper) or {"rope_scaling": {"rope_type": "default"}}
        kinds = _kinds(hyper["block_count"])
        return rope | {"layer_types": kinds, "attention_bias": True, "pad_token_id": None}

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n."""
        window = 0 if n % _PERIOD else cfg.window
        return self.attention(block, cfg, x, positions, window=window, sinks="attn_sinks")

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the mixture of x (B T, C)."""
        routes = block.routes(x, "ffn_gate_inp", cfg.n_experts_used, normalized=True)
        names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        return block.mixture(x, *names, routes, limit=LIMIT, alpha=ALPHA)


register(GptOss("gpt-oss", "GptOss"))
