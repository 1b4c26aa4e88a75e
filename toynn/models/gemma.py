"""Gemma 2 and 3: norms before and after attention and MLP, GeGLU, windows, caps.

    x = sqrt(C) W_e[token]
    x += rmsnorm(W_o attention(W_q n, W_k n, W_v n))         n = rmsnorm(x)
    x += rmsnorm(W_down (gelu(W_gate n) * W_up n))           n = rmsnorm(x)

In blocks with a window, a query sees its last ``window`` keys only. These are every other block of
gemma2, and five of every six blocks of gemma3.
In gemma2, scores and logits are bounded by cap tanh(z / cap).
gemma3 normalises the heads of q and k. Its blocks with a window take RoPE's base from local_base;
the frequencies of its other blocks are divided by rope_divisor.
Scores are divided by sqrt(D). The largest models divide by sqrt(C / H); llama.cpp recognizes them
by their number of blocks. Hugging Face folders store a gain as gain - 1.
Sources: Gemma Team 2024, arXiv:2408.00118, and 2025, arXiv:2503.19786.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive, check_sizes
from toynn.models.hyper import Hyper, shape_of
from toynn.models.keys import (
    FACTOR,
    FREQ_BASE,
    KEY,
    LOCAL_FREQ_BASE,
    LOGITS,
    PATTERN,
    ROTATED,
    SCALING,
    VALUE,
    WINDOW,
)
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rope import base_of, plain
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, MLP, OUTPUT, QKV
from toynn.models.tables import Floats
from toynn.models.tables import norm as gain
from toynn.nn import Layers
from toynn.options import RecipeOptions

_SCORES = "attn_logit_softcapping"
_SCALAR = "attention.query_scalar"  # from folders only: GGUF has no key for it
_USUAL_SCALAR = 256  # where config.json does not say
_CAPS = {"score_cap": 50.0, "logit_cap": 30.0}  # of gemma2
_LARGEST = {"gemma2": 46, "gemma3": 62}  # blocks of the models with 27 billion weights

norm = partial(gain, more=1.0)


@dataclass(frozen=True)
class GemmaConfig(LlamaConfig):
    """Shape of a Gemma. Raises ConfigError for sizes and caps that make no model.

    Attributes
    ----------
    window
        Keys that a query sees, its own included, in blocks with a window.
    score_cap, logit_cap
        Bounds of scores and of logits; 0: none. gemma2 has both; gemma3 never bounds scores.
    local_base
        RoPE's base in blocks with a window.
    rope_divisor
        Divides RoPE's frequencies in blocks without a window.
    query_scalar
        Scores are divided by its square root. None means llama.cpp's choice: the width of a head,
        or d_model / n_heads in a model with 27 billion weights.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none",)

    rms_eps: float = 1e-6
    arch: str = "gemma3"
    window: int = 512
    score_cap: float = 0.0
    logit_cap: float = 0.0
    local_base: float = 1e4
    rope_divisor: float = 1.0
    query_scalar: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window")
        check_positive(self, "local_base", "rope_divisor")
        if self.query_scalar is not None:
            check_positive(self, "query_scalar")
            if self.query_scalar == self.usual_scalar:
                object.__setattr__(self, "query_scalar", None)
        second = self.arch == "gemma2"
        for name, needed in (("score_cap", second), ("logit_cap", second or self.logit_cap != 0)):
            if needed:
                check_positive(self, name)
            elif getattr(self, name) != 0:
                raise ConfigError(f"GemmaConfig: {self.arch} has no {name}")

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return float((self.query_scalar or self.usual_scalar) ** -0.5)

    @property
    def usual_scalar(self) -> float:
        """The query_scalar that llama.cpp assumes."""
        largest = self.n_layers == _LARGEST[self.arch]
        return self.d_model / self.n_heads if largest else self.d_head

    def frequencies(self, base: float, divisor: float = 1.0) -> Floats:
        """Return the angle in radians by which each pair rotates from a position to the next."""
        return (plain(base, self.d_head) / divisor).astype(np.float32)


class Gemma(Llama):
    """The architectures gemma2 and gemma3."""

    config_type = GemmaConfig
    biases_are_fixed = "have no"
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        *QKV,
        norm("blk.{n}.attn_q_norm", "D", f"{LAYER}.self_attn.q_norm", when="head_norms"),
        norm("blk.{n}.attn_k_norm", "D", f"{LAYER}.self_attn.k_norm", when="head_norms"),
        ATTENDED,
        norm("blk.{n}.post_attention_norm", "C", f"{LAYER}.post_attention_layernorm"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.pre_feedforward_layernorm"),
        *MLP,
        norm("blk.{n}.post_ffw_norm", "C", f"{LAYER}.post_feedforward_layernorm"),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    narrows = True

    def __init__(self, name: str, title: str, period: int, model_type: str = "") -> None:
        super().__init__(name, title, head_norms=name == "gemma3")
        self.period = period
        activation = ("gelu_pytorch_tanh",)
        extra = {WINDOW: "sliding_window", LOGITS: LOGITS}
        fixed: dict[str, tuple[object, ...]] = {
            "hidden_activation": activation,
            "hidden_act": (*activation, "gelu", None),  # transformers does not read it
            "use_bidirectional_attention": (False, None),
        }
        optional = {LOGITS}
        if name == "gemma2":
            extra[_SCORES], optional = _SCORES, {LOGITS, _SCORES}
        else:
            fixed[_SCORES] = (None,)
        self.hf = replace(
            self.hf,
            keys={**self.hf.keys, **extra},
            real=self.hf.real | {LOGITS, _SCORES},
            optional=self.hf.optional | optional,
            fixed=fixed,
            shown={"architectures": [f"{title}ForCausalLM"], "hidden_activation": activation[0]},
            tied=True,
            zero_biases=frozenset(),
            model_type=model_type,
        )

    def check(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        """Refuse an untied head in gemma2, and what Llama refuses. Raises ConfigError."""
        super().check(cfg, opts)
        if opts.untied and cfg.arch == "gemma2":
            raise ConfigError(
                "gemma2: the head is tied to token_embd.weight; got untied=True|--untied"
            )

    def new_config(self, **shape: Any) -> LlamaConfig:
        """Return a configuration; for gemma2 it has caps."""
        return super().new_config(**(_CAPS if self.architecture == "gemma2" else {}) | shape)

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        shape, d_head = shape_of(hyper, "blk.0.attn_q.weight")
        second = self.architecture == "gemma2"
        hyper.expect(VALUE, d_head)
        hyper.expect(ROTATED, d_head)
        hyper.expect(PATTERN, self.period)
        divisor = 1.0 if second else hyper.real(FACTOR, 1.0)
        if divisor != 1:
            hyper.expect(SCALING, "linear")
        cap = hyper.real(LOGITS, _CAPS["logit_cap"]) if second or hyper.has(LOGITS) else 0.0
        cfg = GemmaConfig(
            **shape,
            arch=self.architecture,
            rope_base=hyper.real(FREQ_BASE, 1e4),
            window=hyper.whole(WINDOW),
            score_cap=hyper.real(_SCORES, _CAPS["score_cap"]) if second else 0.0,
            logit_cap=cap,
            local_base=1e4 if second else hyper.real(LOCAL_FREQ_BASE, 1e4),
            rope_divisor=divisor,
            query_scalar=hyper.real(_SCALAR) if hyper.has(_SCALAR) else None,
        )
        return cfg

    def check_gguf(self, cfg: Any) -> None:
        """Refuse a query_scalar that llama.cpp would not assume. Raises ConfigError."""
        super().check_gguf(cfg)
        if cfg.query_scalar is not None:
            raise ConfigError(
                f"export: llama.cpp reads this {cfg.arch} with query_scalar {cfg.usual_scalar:g}; "
                f"got {cfg.query_scalar:g}"
            )

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        more: dict[str, Any] = {WINDOW: cfg.window}
        if cfg.score_cap:
            more[_SCORES] = float(cfg.score_cap)
        if cfg.logit_cap:
            more[LOGITS] = float(cfg.logit_cap)
        if self.architecture == "gemma3":
            more[LOCAL_FREQ_BASE] = float(cfg.local_base)
        if cfg.query_scalar is not None:
            more[_SCALAR] = float(cfg.query_scalar)
        if cfg.rope_divisor != 1:
            more |= {SCALING: "linear", FACTOR: float(cfg.rope_divisor)}
        return super().write(cfg) | more

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE, windows and scores; refuse values that have no code."""
        count = hyper.get("block_count", 0)
        hyper[_SCALAR] = config.real("query_pre_attn_scalar", _USUAL_SCALAR)
        for key in ("sliding_window_pattern", "_sliding_window_pattern"):
            config.expect(key, (self.period, None))
        kinds = config.get("layer_types")
        length = len(kinds) if isinstance(kinds, list) else 0
        if kinds is not None and (
            kinds != [_kind(n, self.period) for n in range(length)] or length < count
        ):
            config.refuse(
                f"layer_types must be sliding_attention, and full_attention in the last of every "
                f"{self.period} layers; got {kinds!r}"
            )
        return self._read_rope(config, hyper)

    def _read_rope(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        if self.architecture == "gemma2":
            rope = base_of(config, hyper)
            if rope.pop("rope_type") != "default" or any(rope.values()):
                config.refuse(f"RoPE must be default; got {rope}")
            return {}
        bases_of(config, hyper)
        return {}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for windows, the scale of scores, and RoPE."""
        count, width = hyper["block_count"], hyper[KEY]
        if count == _LARGEST[self.architecture]:
            width = hyper["embedding_length"] / hyper["attention.head_count"]
        scalar = hyper.get(_SCALAR, width)
        keys: dict[str, Any] = {
            "layer_types": [_kind(n, self.period) for n in range(count)],
            "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
            "pad_token_id": None,
            LOGITS: hyper.get(LOGITS),
        }
        if self.architecture == "gemma3":
            whole: dict[str, Any] = {"rope_type": "default", "rope_theta": hyper[FREQ_BASE]}
            if FACTOR in hyper:
                whole |= {"rope_type": "linear", "factor": hyper[FACTOR]}
            local = {"rope_type": "default", "rope_theta": hyper[LOCAL_FREQ_BASE]}
            keys["rope_parameters"] = {"full_attention": whole, "sliding_attention": local}
        return keys

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies in blocks without and with a window."""
        third = self.architecture == "gemma3"
        return {
            "inverse_frequencies": cfg.frequencies(cfg.rope_base, cfg.rope_divisor),
            "local_frequencies": cfg.frequencies(cfg.local_base if third else cfg.rope_base),
        }

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        x = layers.scale(self.embed(layers, cfg, tokens), sqrt(cfg.d_model))
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            normed = block.rmsnorm(x, "attn_norm", cfg.norm_eps)
            heads = self._attention(block, cfg, normed, positions, _kind(n, self.period))
            x = block.residual(x, block.rmsnorm(heads, "post_attention_norm", cfg.norm_eps))
            normed = block.rmsnorm(x, "ffn_norm", cfg.norm_eps)
            wide = block.geglu(normed, "ffn_gate", "ffn_up", "ffn_down")
            x = block.add(x, block.rmsnorm(wide, "post_ffw_norm", cfg.norm_eps))
        return x

    def _attention(
        self, block: Layers, cfg: GemmaConfig, x: Tensor, positions: Tensor, kind: str
    ) -> Tensor:
        q, k, v = (block.linear(x, f"attn_{part}") for part in "qkv")
        if self.head_norms:
            q = block.rmsnorm(q, "attn_q_norm", cfg.norm_eps)
            k = block.rmsnorm(k, "attn_k_norm", cfg.norm_eps)
        local = kind == _SLIDING
        frequencies = "local_frequencies" if local else "inverse_frequencies"
        heads = block.attention(
            block.rope(q, positions, cfg.n_heads, frequencies),
            block.rope(k, positions, cfg.n_kv_heads, frequencies),
            v,
            n_heads=cfg.n_heads,
            n_kv_heads=cfg.n_kv_heads,
            scale=cfg.score_scale,
            window=cfg.window if local else 0,
            cap=cfg.score_cap,
        )
        return block.linear(heads, "attn_output")

    def cap(self, cfg: Any) -> float:
        """Return the bound of logits."""
        return float(cfg.logit_cap)


_SLIDING = "sliding_attention"


def bases_of(config: Config, hyper: dict[str, Any]) -> None:
    """Add RoPE's bases of both kinds of blocks, in either spelling, to ``hyper``."""
    ropes = config.get("rope_parameters")
    local: dict[str, Any] = {}
    if isinstance(ropes, dict) and ropes.keys() <= {"full_attention", "sliding_attention"}:
        local = ropes.get("sliding_attention") or {}
        whole: Any = ropes.get("full_attention") or {}
    else:
        whole = config.get("rope_scaling") or {}
        if ropes:
            config.refuse(
                "rope_parameters must be given for full_attention and sliding_attention; "
                f"got {ropes}"
            )
    if not isinstance(whole, dict) or not isinstance(local, dict):
        config.refuse(f"rope_parameters must be objects; got {ropes!r}")
    whole, local = dict(whole), dict(local)
    base = whole.pop("rope_theta", config.get("rope_theta", 1e6))
    hyper[FREQ_BASE] = config.number("rope_theta", base, real=True)
    base = local.pop("rope_theta", config.get("rope_local_base_freq", 1e4))
    hyper[LOCAL_FREQ_BASE] = config.number("rope_local_base_freq", base, real=True)
    kind = whole.pop("rope_type", whole.pop("type", "default"))
    if kind == "linear":
        hyper[FACTOR] = config.number("factor", whole.pop("factor", None), real=True)
        hyper[SCALING] = "linear"
    local_kind = local.pop("rope_type", "default")
    if kind not in ("default", "linear") or local_kind != "default" or whole or local:
        config.refuse(f"RoPE must be default or linear; got {ropes or kind!r}")


def _kind(n: int, period: int) -> str:
    """Return what config.json calls the attention of a block."""
    return _SLIDING if (n + 1) % period else "full_attention"


register(Gemma("gemma2", "Gemma2", 2))
register(Gemma("gemma3", "Gemma3", 6, "gemma3_text"))
