"""Qwen3.5's text model: a gated delta rule in most blocks, gated attention in every n-th.

    x += W_o (rmsnorm(delta(silu(conv(W_qkv n)), g, W_b n)) * silu(W_z n))      n = rmsnorm(x)
    g  = a log(1 + e^(W_a n + dt)),  a < 0
    x += W_o (attention(rotate(rmsnorm(q)), rotate(rmsnorm(W_k n)), W_v n) * sigmoid(gate))
                                                        q, gate = W_q n, side by side in each head
    x += W_down (silu(W_gate n) * W_up n)                                       n = rmsnorm(x)

delta (see its kernel) keeps a state for each head of v. RoPE rotates a part of each head; its three
kinds of positions, which pictures need, are equal for text.
Folders of Hugging Face store w, where a gain is 1 + w and a is -e^w. In a folder, heads of v that
share a head of q and k are adjacent. In a GGUF file, head h of v uses head h mod K of q and k.
Sources: Qwen Team 2025, qwen3_5 of transformers and qwen35 of llama.cpp; the delta rule: Yang,
Kautz & Hatamizadeh 2024, arXiv:2412.06464.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.formats.hf.name_mapping import Order
from toynn.graph.tape import Tensor
from toynn.models.checks import check_sizes, check_taps, set_defaults
from toynn.models.hyper import Hyper, refuse, shape_of
from toynn.models.keys import FREQ_BASE, KEY, KV, ROTATED, VALUE
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rope import base_of, check_channels, part_of, part_written
from toynn.models.rows import ATTENDED, EMBEDDING, MLP, OUTPUT, QKV
from toynn.models.tables import Floats, Row, Sizes, matrix, taps
from toynn.models.tables import norm as gain
from toynn.nn import Layers
from toynn.options import RecipeOptions

_LAYER, DELTA = "model.layers.{n}", "model.layers.{n}.linear_attn"
_MOST = 256  # rows of a state
_TAPS, D_K = "ssm.conv_kernel", "ssm.state_size"
K_HEADS, V_HEADS, INNER = "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"
_EVERY = "full_attention_interval"
SECTIONS = "rope.dimension_sections"

#: Keys of config.json for blocks that predict tokens after the next one, and for other programs.
_UNUSED = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")

norm = partial(gain, more=1.0)


@dataclass(frozen=True)
class Qwen35Config(LlamaConfig):
    """Shape of a Qwen3.5. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    attention_every
        The last of this many blocks has attention, the others a delta rule.
    rope_channels
        Channels of a head that RoPE rotates; None: a quarter.
    conv_taps
        Rows that a convolution sums, 1 to 16.
    delta_heads, delta_value_heads
        Heads of q and k, and of v, in a delta rule. None: n_heads, and as many as delta_heads.
    delta_dim, delta_value_dim
        Channels of a head of q and k (at most 256), and of v; None: as in attention.
    """

    rms_eps: float = 1e-6
    arch: str = "qwen35"
    attention_every: int = 4
    rope_channels: int | None = None
    conv_taps: int = 4
    delta_heads: int | None = None
    delta_value_heads: int | None = None
    delta_dim: int | None = None
    delta_value_dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = {
            "rope_channels": max(self.d_head // 8 * 2, 2),
            "delta_heads": self.n_heads,
            "delta_value_heads": self.delta_heads or self.n_heads,
            "delta_dim": min(self.d_head, _MOST),
            "delta_value_dim": self.d_head,
        }
        set_defaults(self, **usual)
        check_sizes(self, "attention_every", "conv_taps", *usual)
        check_channels(self)
        K, V, D = self.delta_heads, self.delta_value_heads, self.delta_dim
        assert K is not None and V is not None and D is not None
        if V % K or D > _MOST:
            raise ConfigError(
                f"{type(self).__name__}: delta_heads must divide delta_value_heads, and delta_dim "
                f"must be at most {_MOST}; got {K}, {V} and {D}"
            )
        check_taps(self)

    def attends(self, n: int) -> bool:
        """Say whether block n has attention."""
        return (n + 1) % self.attention_every == 0

    @property
    def delta(self) -> tuple[int, int, int, int]:
        """Heads of q and k, heads of v, channels of a head of q and k, channels of a head of v."""
        sizes = (self.delta_heads, self.delta_value_heads, self.delta_dim, self.delta_value_dim)
        K, V, D, E = (size or 0 for size in sizes)
        return K, V, D, E


def _tiled(hyper: Mapping[str, Any], size: int, *, behind: bool = False) -> NDArray[np.intp]:
    """Return, for each row of v's heads here, its row in a Hugging Face folder.

    With ``behind``, the rows of v follow those of q and k, which have the same order in both.
    """
    K, V = (hyper[key] for key in (K_HEADS, V_HEADS))
    before = 2 * K * hyper[D_K] if behind else 0
    if not 0 <= before < size or V < 1 or K < 1 or V % K or (size - before) % V:
        raise ValueError(f"{K} and {V} heads")
    each = np.arange(before, size).reshape(K, V // K, -1).swapaxes(0, 1).reshape(-1)
    return np.append(np.arange(before), each)


_ROWS, _COLUMNS = Order(0, _tiled), Order(1, _tiled)
_QKV = Order(0, partial(_tiled, behind=True))


class Qwen35(Llama):
    """The architecture."""

    config_type = Qwen35Config
    mlp_norm = "post_attention_norm"
    biases_are_fixed = "have no"
    #: Whether the heads of v that share a head of q and k are adjacent.
    grouped = False
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{_LAYER}.input_layernorm"),
        matrix("blk.{n}.attn_q", "2Q C", f"{_LAYER}.self_attn.q_proj", when="attends"),
        *(replace(row, when="attends") for row in QKV[1:]),
        norm("blk.{n}.attn_q_norm", "D", f"{_LAYER}.self_attn.q_norm", when="attends"),
        norm("blk.{n}.attn_k_norm", "D", f"{_LAYER}.self_attn.k_norm", when="attends"),
        replace(ATTENDED, when="attends"),
        matrix("blk.{n}.attn_qkv", "X C", f"{DELTA}.in_proj_qkv", when="delta", order=_QKV),
        matrix("blk.{n}.attn_gate", "I C", f"{DELTA}.in_proj_z", when="delta", order=_ROWS),
        matrix("blk.{n}.ssm_beta", "H C", f"{DELTA}.in_proj_b", when="delta", order=_ROWS),
        matrix("blk.{n}.ssm_alpha", "H C", f"{DELTA}.in_proj_a", when="delta", order=_ROWS),
        taps("blk.{n}.ssm_conv1d", "X L", f"{DELTA}.conv1d", when="delta", order=_QKV),
        Row(
            "blk.{n}.ssm_a", "H", f"{DELTA}.A_log", "decays",
            bare=True, when="delta", logarithm=True, order=_ROWS,
        ),
        gain(
            "blk.{n}.ssm_dt.bias", "H", f"{DELTA}.dt_bias", bare=True, when="delta", order=_ROWS
        ),
        gain("blk.{n}.ssm_norm", "DV", f"{DELTA}.norm", when="delta"),
        matrix("blk.{n}.ssm_out", "C I", f"{DELTA}.out_proj", when="delta", order=_COLUMNS),
        norm("blk.{n}.post_attention_norm", "C", f"{_LAYER}.post_attention_layernorm"),
        *MLP,
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )  # fmt: skip

    def __init__(self, name: str, title: str, model_type: str) -> None:
        super().__init__(name, title, head_norms=True)
        keys = {
            _TAPS: "linear_conv_kernel_dim",
            D_K: "linear_key_head_dim",
            K_HEADS: "linear_num_key_heads",
            V_HEADS: "linear_num_value_heads",
        }
        self.hf = replace(
            self.hf,
            keys={**self.hf.keys, **keys},
            optional=self.hf.optional - {KV, KEY},
            fixed={"hidden_act": ("silu",), "attn_output_gate": (True,)},
            zero_biases=frozenset(),
            model_type=model_type,
        )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        (K, V, D, E), attends = cfg.delta, n is not None and cfg.attends(n)
        letters = {"attends": attends, "delta": not attends, "L": cfg.conv_taps, "H": V, "DV": E}
        letters |= {"X": 2 * K * D + V * E, "I": V * E, "2Q": 2 * cfg.n_heads * cfg.d_head}
        return {**super().sizes(cfg, opts, n), **letters}

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        every = hyper.whole(_EVERY, 4)
        attends = every <= hyper.layers
        queries = f"blk.{every - 1}.attn_q.weight" if attends else "token_embd.weight"
        shape, d_head = shape_of(hyper, queries)
        V, inner = hyper.whole(V_HEADS), hyper.whole(INNER)
        if inner % V:
            refuse(
                hyper.file,
                f"{hyper.prefix}{INNER} must be a multiple of the {V} heads; got {inner}",
            )
        if hyper.has(SECTIONS):  # they matter to pictures only
            hyper.counts(SECTIONS, 4)
        cfg = self.config_type(
            **shape,
            arch=self.architecture,
            rope_base=hyper.real(FREQ_BASE, 1e4),
            attention_every=every,
            rope_channels=hyper.whole(ROTATED, d_head),
            conv_taps=hyper.whole(_TAPS),
            delta_heads=hyper.whole(K_HEADS),
            delta_value_heads=V,
            delta_dim=hyper.whole(D_K),
            delta_value_dim=inner // V,
        )
        hyper.expect(VALUE, d_head)
        return cfg

    def check_gguf(self, cfg: Any) -> None:
        """Refuse heads of k and of v that differ in width. Raises ConfigError."""
        super().check_gguf(cfg)
        if cfg.delta_dim != cfg.delta_value_dim:
            raise ConfigError(
                f"export: llama.cpp reads {cfg.arch} with delta_dim = delta_value_dim; got "
                f"{cfg.delta_dim} and {cfg.delta_value_dim}"
            )

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        (K, V, D, E), pairs = cfg.delta, (cfg.rope_channels or 0) // 2
        delta = {_TAPS: cfg.conv_taps, D_K: D, K_HEADS: K, V_HEADS: V, INNER: V * E}
        third = [-(-pairs // 3), -(-(pairs - -(-pairs // 3)) // 2)]  # 11, 11, 10 of 32
        delta[_EVERY] = cfg.attention_every
        return super().write(cfg) | delta | {SECTIONS: [*third, pairs - sum(third), 0]}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for attention blocks, widths and RoPE; refuse all else."""
        kinds, count = config.get("layer_types"), hyper.get("block_count", 0)
        every = config.get(_EVERY, 4)
        if kinds is not None:
            listed = kinds if isinstance(kinds, list) else []
            full = [n for n, kind in enumerate(listed) if kind == "full_attention"]
            every = full[0] + 1 if full else max(count, 1) + 1
            usual = [_kind(n, every) for n in range(len(listed))]
            if kinds != usual or len(kinds) != count:
                config.refuse(
                    f"layer_types must have {count} entries: full_attention in every n-th, "
                    f"linear_attention in the others; got {kinds!r}"
                )
        hyper[_EVERY] = int(config.number(_EVERY, every, real=False))
        hyper[INNER] = config.whole("linear_value_head_dim") * hyper.get(V_HEADS, 0)
        config.ignore(*_UNUSED)
        rope = base_of(config, hyper)
        part_of(config, hyper, rope, 0.25)
        for key in ("mrope_section", "mrope_interleaved"):  # they matter to pictures only
            rope.pop(key, None)
        if rope.pop("rope_type") != "default" or any(rope.values()):
            config.refuse(f"RoPE must be default; got {config.get('rope_parameters')}")
        return {}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for attention blocks, the width of v's heads, and RoPE."""
        rope = {
            "rope_type": "default",
            "rope_theta": hyper[FREQ_BASE],
            **part_written(hyper),
        }
        if SECTIONS in hyper:
            rope["mrope_section"] = hyper[SECTIONS][:3]
        return {
            "layer_types": [_kind(n, hyper[_EVERY]) for n in range(hyper["block_count"])],
            "linear_value_head_dim": hyper[INNER] // hyper[V_HEADS],
            "rope_parameters": rope,
            "pad_token_id": None,
        }

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n, or its delta rule."""
        if cfg.attends(n):
            return self._attention(block, cfg, x, positions)
        return self._delta(block, cfg, x)

    def _attention(self, block: Layers, cfg: LlamaConfig, x: Tensor, positions: Tensor) -> Tensor:
        """Record attention of x (B T, C), times the sigmoid of its gates."""
        both, H, KV = block.linear(x, "attn_q"), cfg.n_heads, cfg.n_kv_heads
        q = block.rmsnorm(block.queries(both, H), "attn_q_norm", cfg.norm_eps)
        k = block.rmsnorm(block.linear(x, "attn_k"), "attn_k_norm", cfg.norm_eps)
        heads = block.attention(
            block.rope(q, positions, H),
            block.rope(k, positions, KV),
            block.linear(x, "attn_v"),
            n_heads=H,
            n_kv_heads=KV,
        )
        return block.linear(block.gated(heads, both, H), "attn_output")

    def _delta(self, block: Layers, cfg: Qwen35Config, x: Tensor) -> Tensor:
        """Record a gated delta rule of x (B T, C)."""
        K, _, D, _ = cfg.delta
        qkv = block.silu(block.convolution(block.linear(x, "attn_qkv"), "ssm_conv1d"))
        c, a = self.written(block, cfg, x)
        g = block.decay(a, "ssm_a", "ssm_dt.bias")
        heads = block.delta(qkv, g, c, K, D, grouped=self.grouped)
        normed = block.rmsnorm(heads, "ssm_norm", cfg.norm_eps)
        gate = block.linear(block.narrowed(x), "attn_gate")
        return block.linear(block.gate(normed, gate), "ssm_out")

    def written(self, block: Layers, cfg: Qwen35Config, x: Tensor) -> tuple[Tensor, Tensor]:
        """Record W_b x and W_a x (B T, V): they give the strength and the decay of a write."""
        return block.linear(x, "ssm_beta"), block.linear(x, "ssm_alpha")


def _kind(n: int, every: int) -> str:
    """Return what config.json calls a block."""
    return "linear_attention" if (n + 1) % every else "full_attention"


register(Qwen35("qwen35", "Qwen3_5", "qwen3_5_text"))
