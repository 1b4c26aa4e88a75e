"""LFM2: short convolutions between gates, and grouped attention in a few blocks.

    x += W_out (g * conv(b * v))                                b, g, v = W_in n
    x += W_o attention(rotate(rmsnorm(W_q n)), rotate(rmsnorm(W_k n)), W_v n)    in attention_blocks
    x += W_down (silu(W_gate n) * W_up n)                       n = rmsnorm(x), each time

conv sums conv_taps rows of each channel; the last is the token's own. Heads of q and k are
normalised. In a GGUF file, blocks without attention have 0 heads of k and v.
Source: Liquid AI 2025, arXiv:2511.23404.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_recurrent, check_sizes
from toynn.models.hyper import Hyper, refuse, shape_of
from toynn.models.keys import EPS, FREQ_BASE, KV, ROTATED, SCALING, VALUE
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rope import factors_of
from toynn.models.rows import EMBEDDING, LAYER, OUTPUT, QKV
from toynn.models.tables import Floats, Sizes, matrix, norm, taps
from toynn.nn import Layers
from toynn.options import RecipeOptions

_TAPS = "shortconv.l_cache"
_PERIOD = 3  # in a new model every third block has attention
#: Keys of config.json that transformers does not read, or reads only to adjust the MLP's width.
_UNUSED = (
    "block_dim", "block_ffn_dim_multiplier", "block_mlp_init_scale", "block_multiple_of",
    "block_norm_eps", "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init",
    "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc",
)  # fmt: skip


@dataclass(frozen=True)
class LFM2Config(LlamaConfig):
    """Shape of an LFM2. Raises ConfigError for sizes and blocks that make no model.

    Attributes
    ----------
    attention_blocks
        Indices of the blocks with attention, ascending; the others have a convolution.
    conv_taps
        Rows that a convolution sums, 1 to 16.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none",)

    arch: str = "lfm2"
    attention_blocks: tuple[int, ...] = ()
    conv_taps: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "conv_taps")
        check_recurrent(self, least=" at least one,")


class LFM2(Llama):
    """The architecture."""

    config_type = LFM2Config
    fixed_heads = True
    biases_are_fixed = "have no"
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.operator_norm"),
        matrix("blk.{n}.shortconv.in_proj", "3C C", f"{LAYER}.conv.in_proj", when="convolves"),
        taps("blk.{n}.shortconv.conv", "C L", f"{LAYER}.conv.conv", when="convolves"),
        matrix("blk.{n}.shortconv.out_proj", "C C", f"{LAYER}.conv.out_proj", when="convolves"),
        *(replace(row, when="attends") for row in QKV),
        norm("blk.{n}.attn_q_norm", "D", f"{LAYER}.self_attn.q_layernorm", when="attends"),
        norm("blk.{n}.attn_k_norm", "D", f"{LAYER}.self_attn.k_layernorm", when="attends"),
        matrix("blk.{n}.attn_output", "C Q", f"{LAYER}.self_attn.out_proj", when="attends"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.ffn_norm"),
        matrix("blk.{n}.ffn_gate", "F C", f"{LAYER}.feed_forward.w1"),
        matrix("blk.{n}.ffn_up", "F C", f"{LAYER}.feed_forward.w3"),
        matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.feed_forward.w2"),
        norm("token_embd_norm", "C", "model.embedding_norm"),  # after the last block
        OUTPUT,
    )  # fmt: skip
    hf = replace(
        Llama.hf,
        keys={
            **{key: hf_key for key, hf_key in Llama.hf.keys.items() if "rms" not in key},
            EPS: "norm_eps",
            _TAPS: "conv_L_cache",
        },
        fixed={"conv_bias": (False,), "hidden_act": ("silu",)},
        zero_biases=frozenset(),
        tied=True,
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        attends = n in cfg.attention_blocks
        letters = {"attends": attends, "convolves": not attends, "L": cfg.conv_taps}
        return {**super().sizes(cfg, opts, n), **letters, "3C": 3 * cfg.d_model}

    def new_config(self, **shape: Any) -> LlamaConfig:
        """Return a configuration with attention in every third block; with fewer, in the last."""
        count = shape["n_layers"]
        blocks = tuple(range(_PERIOD - 1, count, _PERIOD)) or (count - 1,)
        return super().new_config(**{"attention_blocks": blocks} | shape)

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        counts = hyper.counts(KV, hyper.layers)
        attends = [n for n, heads in enumerate(counts) if heads]
        if len({counts[n] for n in attends}) != 1:
            refuse(
                hyper.file,
                f"{hyper.prefix}{KV} must be the same in every block, or 0; got {counts}",
            )
        queries = f"blk.{attends[0]}.attn_q.weight"
        shape, d_head = shape_of(hyper, queries, counts[attends[0]])
        cfg = self.config_type(
            **shape,
            arch=self.architecture,
            rope_base=hyper.real(FREQ_BASE, 1e4),
            attention_blocks=tuple(attends),
            conv_taps=hyper.whole(_TAPS),
        )
        hyper.expect(VALUE, d_head)
        hyper.expect(ROTATED, d_head)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        heads = [cfg.n_kv_heads * (n in cfg.attention_blocks) for n in range(cfg.n_layers)]
        return super().write(cfg) | {KV: heads, _TAPS: cfg.conv_taps}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for blocks with attention, the MLP's width, and RoPE."""
        kinds, count = config.get("layer_types"), hyper.get("block_count", 0)
        at = config.get("full_attn_idxs")
        if kinds is None and isinstance(at, list) and count < 1 << 16:
            kinds = ["full_attention" if n in at else "conv" for n in range(count)]
        if not isinstance(kinds, list) or any(
            kind not in ("full_attention", "conv") for kind in kinds
        ):
            config.refuse(f"layer_types must be full_attention or conv; got {kinds!r}")
        if len(kinds) != count:
            config.refuse(f"layer_types must have {count} entries; got {len(kinds)}")
        heads = hyper.get(KV, hyper.get("attention.head_count", 0))
        hyper[KV] = [heads * (kind != "conv") for kind in kinds]
        tied = config.get("tie_word_embeddings", True)
        if config.get("tie_embedding", tied) != tied:  # the key of old versions
            config.refuse(f"tie_embedding is {not tied}; tie_word_embeddings is {tied}")
        self.read_width(config, hyper)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if config.get("rope_theta") is None and "rope_theta" not in rope:
            config.refuse("rope_theta is missing")
        if factors_of(config, hyper) is not None or SCALING in hyper:
            config.refuse(f"RoPE must be default; got {rope}")
        return {}

    def read_width(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read the width of the MLP."""
        width = config.get("block_ff_dim") or hyper.get("feed_forward_length", 0)
        width = config.number("block_ff_dim", width, real=False)
        if config.get("block_auto_adjust_ff_dim", True):
            factor = config.get("block_ffn_dim_multiplier", 1.0)
            of = config.whole("block_multiple_of", 256)
            width = int(2 * width / 3)
            if factor is not None:
                factor = config.number("block_ffn_dim_multiplier", factor, real=True)
                width = -(-int(factor * width) // of) * of
        hyper["feed_forward_length"] = width
        config.ignore(*_UNUSED)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for blocks with attention, and for an MLP's width as given."""
        kinds = ["full_attention" if heads else "conv" for heads in hyper[KV]]
        keys = {"layer_types": kinds, "num_key_value_heads": max(hyper[KV])}
        return keys | {"block_auto_adjust_ff_dim": False, "pad_token_id": None}

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n, or its convolution."""
        if n in cfg.attention_blocks:
            return self.attention(block, cfg, x, positions)
        return block.shortconv(x, "shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")

    def last(self, layers: Layers, cfg: LlamaConfig, x: Tensor) -> Tensor:
        """Record the last norm."""
        return layers.rmsnorm(x, "token_embd_norm", cfg.norm_eps)


register(LFM2("lfm2", "Lfm2", head_norms=True))
