"""Phi-3, 3.5 and 4-mini: fused matrices, RoPE on a part of each head, long contexts by factors.

    q, k, v = W_qkv n                         x += W_o attention(rotate(q), rotate(k), v)
    g, u = W_gu n                             x += W_down (silu(g) * u)

RoPE rotates a head's first R = rope_channels channels, pair i by position / (f[i] base^(2i/R)). In
a model with a stretched context, f is one of two tables: short_factors for sequences of at most
original_context tokens, long_factors for longer ones. Rotated channels are multiplied by
rope_magnitude. A generation that passes original_context reads the whole sequence again. A query
sees its last ``window`` keys. llama.cpp ignores the window. It chooses the table by the size of its
context, which is set at its start.
Sources: Abdin et al. 2024, arXiv:2404.14219; Ding et al. 2024 (LongRoPE), arXiv:2402.13753.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_lists, check_positive, check_sizes
from toynn.models.hyper import Hyper, shape_of
from toynn.models.keys import FREQ_BASE, MAGNITUDE, ORIGINAL, ROTATED, SCALING, VALUE, WINDOW
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rope import base_of, check_channels, numbers, part_of, part_written, plain
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, OUTPUT
from toynn.models.tables import Floats, Sizes, matrix, norm
from toynn.nn import Layers
from toynn.options import RecipeOptions

_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_TABLES = {_LONG: "long_factor", _SHORT: "short_factor"}
_DEFAULT_ORIGINAL = 4096  # where config.json does not say
_LONGROPE = ("longrope", "su", "yarn")  # config.json's three names for longrope


@dataclass(frozen=True)
class Phi3Config(LlamaConfig):
    """Shape of a Phi-3. Raises ConfigError for sizes and factors that make no model.

    Attributes
    ----------
    rope_channels
        Channels of a head that rotate, an even number; None means all.
    window
        Keys that a query sees, its own included; 0: no window.
    short_factors, long_factors
        Divisors of the frequencies, one for each pair; both empty: no scaling.
    original_context
        Most tokens of a sequence that uses short_factors; 0 means ``context``.
    rope_magnitude
        Factor of the rotated channels.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none",)

    arch: str = "phi3"
    rope_channels: int | None = None
    window: int = 0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    original_context: int = 0
    rope_magnitude: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self)
        check_sizes(self, "window", "original_context", least=0)
        if not self.original_context:
            object.__setattr__(self, "original_context", self.context)
        check_positive(self, "rope_magnitude")
        assert self.rope_channels is not None
        longrope = bool(self.short_factors or self.long_factors)
        pairs = self.rope_channels // 2 if longrope else 0
        check_lists(self, pairs, "short_factors", "long_factors")
        if self.rope_magnitude != 1 and not longrope:
            raise ConfigError("Phi3Config: rope_magnitude needs short_factors and long_factors")

    def frequencies(self, factors: tuple[float, ...]) -> Floats:
        """Return the angle in radians by which each pair rotates from a position to the next."""
        R = self.rope_channels
        assert R is not None
        return (plain(self.rope_base, R) / (factors or 1.0)).astype(np.float32)


class Phi3(Llama):
    """The architecture."""

    config_type = Phi3Config
    fixed_heads = True
    biases_are_fixed = "have no"
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        matrix("blk.{n}.attn_qkv", "QKV C", f"{LAYER}.self_attn.qkv_proj"),
        ATTENDED,
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.post_attention_layernorm"),
        matrix("blk.{n}.ffn_up", "2F C", f"{LAYER}.mlp.gate_up_proj"),
        matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.mlp.down_proj"),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    hf = replace(
        Llama.hf,
        keys={
            **Llama.hf.keys,
            WINDOW: "sliding_window",
            ORIGINAL: "original_max_position_embeddings",
        },
        optional=Llama.hf.optional | {WINDOW, ORIGINAL},
        zero_biases=frozenset(),
        fixed={"hidden_act": ("silu", "swish"), "full_attn_mod": (1,), "interpolate_factor": (1,)},
    )
    narrows = True

    def sizes(self, cfg: LlamaConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        sizes = super().sizes(cfg, opts, n)
        return {**sizes, "QKV": sizes["Q"] + 2 * sizes["KV"], "2F": 2 * sizes["F"]}

    config_says = frozenset(("rope_factors_long", "rope_factors_short"))

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        shape, d_head = shape_of(hyper, "blk.0.attn_qkv.weight")
        long, short = (
            tuple(map(float, np.ravel(hyper.file[name]))) if name in hyper.tensors else ()
            for name in (_LONG, _SHORT)
        )
        hyper.expect(SCALING, "longrope" if long else "none")
        cfg = Phi3Config(
            **shape,
            arch=self.architecture,
            rope_base=hyper.real(FREQ_BASE, 1e4),
            rope_channels=hyper.whole(ROTATED, d_head),
            window=hyper.count(WINDOW),
            short_factors=short,
            long_factors=long,
            original_context=hyper.whole(ORIGINAL, shape["context"]),
            rope_magnitude=hyper.real(MAGNITUDE, 1.0),
        )
        hyper.expect(VALUE, d_head)
        return cfg

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        short = 0 < cfg.window < cfg.context
        return super().unlike(cfg) + [f"has no window of {cfg.window} tokens here"] * short

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {
            WINDOW: cfg.window,
            ORIGINAL: cfg.original_context,
            MAGNITUDE: float(cfg.rope_magnitude),
        }

    def beside(self, cfg: Any) -> dict[str, Floats]:
        """Return the factors of RoPE's frequencies."""
        both = {_LONG: cfg.long_factors, _SHORT: cfg.short_factors}
        return {name: np.array(factors, np.float32) for name, factors in both.items() if factors}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE."""
        rope = base_of(config, hyper)
        part_of(config, hyper, rope, 1.0)
        kind = rope.pop("rope_type", "default")
        original = hyper.pop(ORIGINAL, None)
        if kind == "default" and not any(rope.values()):
            return {}
        tables = {name: rope.pop(key, None) for name, key in _TABLES.items()}
        if kind not in _LONGROPE or None in tables.values():
            config.refuse(f"RoPE must be default or longrope; got {kind!r} with {rope}")
        inside = rope.pop("original_max_position_embeddings", None)
        if original and inside and original != inside:
            config.refuse(
                f"original_max_position_embeddings is {original}; in rope_scaling it is {inside}"
            )
        original = original or inside or _DEFAULT_ORIGINAL
        hyper[ORIGINAL] = config.number("original_max_position_embeddings", original, real=False)
        factor = rope.pop("factor", None) or hyper.get("context_length", 0) / original
        magnitude = rope.pop("attention_factor", None)
        if magnitude is None:
            magnitude = sqrt(1 + log(factor) / log(original)) if factor > 1 else 1.0
        hyper[MAGNITUDE] = config.number("attention_factor", magnitude, real=True)
        if any(rope.values()):
            config.refuse(f"longrope has keys that are not known to toynn: {', '.join(rope)}")
        return {name: numbers(config, _TABLES[name], values) for name, values in tables.items()}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE and the window."""
        keys: dict[str, Any] = part_written(hyper) | {"pad_token_id": None}
        if not hyper[WINDOW]:
            keys["sliding_window"] = None
        if _LONG in tensors:
            lists = {key: [float(f) for f in tensors[name]] for name, key in _TABLES.items()}
            magnitude = {"attention_factor": hyper[MAGNITUDE]}
            keys["rope_scaling"] = {"type": "longrope", **lists, **magnitude}
        return keys

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies for short and for long sequences."""
        return {
            "inverse_frequencies": cfg.frequencies(cfg.short_factors),
            "long_frequencies": cfg.frequencies(cfg.long_factors),
        }

    def is_long(self, cfg: Any, length: int) -> bool:
        """Say whether a sequence of ``length`` tokens uses long_factors."""
        return bool(cfg.long_factors) and length > cfg.original_context

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        H, KV = cfg.n_heads, cfg.n_kv_heads
        frequencies = "long_frequencies" if layers.long else "inverse_frequencies"
        x = self.embed(layers, cfg, tokens)
        for block in layers.blocks(cfg.n_layers):
            qkv = block.linear(block.rmsnorm(x, "attn_norm", cfg.norm_eps), "attn_qkv")
            qkv = block.rope(
                qkv,
                positions,
                H + 2 * KV,
                frequencies,
                magnitude=cfg.rope_magnitude,
                rotated=H + KV,
            )
            if layers.long_positions is not None:  # 0 in short examples: no rotation
                qkv = block.rope(
                    qkv, layers.long_positions, H + 2 * KV, "long_frequencies", rotated=H + KV
                )
            heads = block.attention(qkv, n_heads=H, n_kv_heads=KV, window=cfg.window)
            x = block.residual(x, block.linear(heads, "attn_output"))
            normed = block.rmsnorm(x, "ffn_norm", cfg.norm_eps)
            x = block.add(x, block.swiglu_of(normed, "ffn_up", "ffn_down"))
        return x


register(Phi3("phi3", "Phi3"))
