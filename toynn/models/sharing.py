"""What Gemma 3n and Gemma 4 share: keys and values of earlier blocks, an input for each block.

The last shared_kv blocks have no k and v. They read k and v of the last block of their kind that
has both. Scores are not divided; heads of v are normalised without a gain. The input of block n is
its stretch of per_layer numbers of this sum:

    (rmsnorm(W_model x / sqrt(C)) + sqrt(P) W_p[token]) / sqrt(2)       x as embedded, P = per_layer
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive, check_sizes
from toynn.models.keys import LOGITS, PATTERN
from toynn.models.rope import plain
from toynn.models.rows import ATTENDED, LAYER, QKV
from toynn.models.tables import Floats, matrix, norm, table
from toynn.models.windows import WindowConfig, Windowed
from toynn.nn import Layers

SHARED, INPUT = "attention.shared_kv_layers", "embedding_length_per_layer_input"
_MOST = 1 << 16  # blocks: more have no tensors
KINDS = ("full_attention", "sliding_attention")

#: Rows of the table: of the inputs of all blocks, of attention and its norms, of a block's input.
FOR_ALL = (
    table("per_layer_token_embd", "V LP", "model.embed_tokens_per_layer", std=0.02, when="P"),
    matrix("per_layer_model_proj", "LP C", "model.per_layer_model_projection", when="P"),
    norm("per_layer_proj_norm", "P", "model.per_layer_projection_norm", when="P"),
)
HEADS = (
    norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
    QKV[0],
    replace(QKV[1], when="has_k"),
    replace(QKV[2], when="has_v"),
    norm("blk.{n}.attn_q_norm", "D", f"{LAYER}.self_attn.q_norm"),
    norm("blk.{n}.attn_k_norm", "D", f"{LAYER}.self_attn.k_norm", when="has_k"),
    ATTENDED,
    norm("blk.{n}.post_attention_norm", "C", f"{LAYER}.post_attention_layernorm"),
    norm("blk.{n}.ffn_norm", "C", f"{LAYER}.pre_feedforward_layernorm"),
)
FOR_BLOCK = (
    matrix("blk.{n}.inp_gate", "P C", f"{LAYER}.per_layer_input_gate", when="P"),
    matrix("blk.{n}.proj", "C P", f"{LAYER}.per_layer_projection", when="P"),
    norm("blk.{n}.post_norm", "C", f"{LAYER}.post_per_layer_input_norm", when="P"),
)


@dataclass(frozen=True)
class SharingConfig(WindowConfig):
    """Shape of a model with shared keys and values. Raises ConfigError for what makes no model.

    Attributes
    ----------
    window, windowed
        As in WindowConfig. If windowed is empty, the last of every ``period`` blocks has no window.
    local_base
        rope_base of blocks with a window.
    shared_kv
        Number of last blocks without k and v.
    per_layer
        Width of the input of each block; 0: none.
    logit_cap
        Bound of logits; 0: none.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none",)
    period: ClassVar[int] = 6
    #: Whether the last block has no window.
    full_last: ClassVar[bool] = True

    rms_eps: float = 1e-6
    rope_base: float = 1e6
    window: int = 512
    local_base: float = 1e4
    shared_kv: int = 0
    per_layer: int = 0
    logit_cap: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self, "n_layers", "window")
        if not self.windowed:
            object.__setattr__(self, "windowed", self.usual(self.n_layers))
        super().__post_init__()
        check_sizes(self, "shared_kv", "per_layer", least=0)
        check_positive(self, "local_base", *(("logit_cap",) if self.logit_cap else ()))
        first = self.windowed[: max(self.n_layers - self.shared_kv, 0)]
        if not set(self.windowed) <= {*first}:
            raise ConfigError(
                f"{type(self).__name__}: shared_kv must leave a block of each kind that has k and "
                f"v; got {self.shared_kv} of {self.n_layers}, windowed {self.windowed}"
            )

    @classmethod
    def usual(cls, count: int) -> tuple[bool, ...]:
        """Return which of ``count`` blocks have a window where nothing says so."""
        last = count - 1 if cls.full_last else count
        return tuple((n + 1) % cls.period != 0 and n != last for n in range(count))

    def shares(self, n: int) -> bool:
        """Say whether block n has no k and v."""
        return n >= self.n_layers - self.shared_kv

    def source(self, n: int) -> int:
        """Return the block whose k and v block n reads."""
        with_kv = range(min(n + 1, self.n_layers - self.shared_kv))
        return max(m for m in with_kv if self.windowed[m] == self.windowed[n])

    def width_of(self, full: bool) -> int:
        """Return the width of a head of blocks without a window, or with one."""
        return self.d_head

    def heads(self, full: bool) -> int:
        """Return the heads of k and v of blocks without a window, or with one."""
        return self.n_kv_heads

    def frequencies(self, full: bool) -> Floats:
        """Return by how much each pair rotates from one position to the next."""
        base = self.rope_base if full else self.local_base
        return plain(base, self.width_of(full)).astype(np.float32)


class Sharing(Windowed):
    """Base of the architectures with a SharingConfig."""

    config_type: ClassVar[type[Any]] = SharingConfig
    usual_window = 512
    usual_shared = 0  #: shared_kv where config.json does not say.
    biases_are_fixed = "have no"

    def check_gguf(self, cfg: Any) -> None:
        """Refuse blocks whose k and v llama.cpp takes from another. Raises ConfigError."""
        super().check_gguf(cfg)
        first = cfg.n_layers - cfg.shared_kv
        for n in range(first, cfg.n_layers):
            if cfg.source(n) != first - 1 - cfg.windowed[n]:
                raise ConfigError(
                    f"export: llama.cpp reads {cfg.arch} with block {first - 2} with a window and "
                    f"{first - 1} without, as the last that have k and v; got windowed "
                    f"{cfg.windowed[:first]}"
                )

    def unread(self, hyper: Mapping[str, Any], name: str) -> bool:
        """Say whether a tensor is a k or v of a block that reads those of another."""
        _, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        first = hyper.get("block_count", 0) - hyper.get(SHARED, 0)
        unread_names = (f"{part}.weight" for part in ("attn_k", "attn_v", "attn_k_norm"))
        return number.isdecimal() and int(number) >= first and part in unread_names

    def read_counts(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read how many blocks share keys and values, and the width of their inputs."""
        for key, name, usual in (
            (SHARED, "num_kv_shared_layers", self.usual_shared),
            (INPUT, "hidden_size_per_layer_input", 256),
        ):
            count = config.get(name, usual)
            hyper[key] = config.number(name, 0 if count is None else count, real=False, least=0)

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read which blocks have a window."""
        count = min(hyper.get("block_count", 0), _MOST)
        usual = [KINDS[has] for has in self.config_type.usual(count)]
        kinds = config.get("layer_types")
        super().read_kinds(config.over(layer_types=usual if kinds is None else kinds), hyper)
        if PATTERN not in hyper:
            config.refuse("sliding_window must be a whole number >= 1; got None")

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return kinds of blocks, what they share, their inputs, and the bound of logits."""
        keys = super().folder(hyper, tensors)
        keys |= {
            "num_kv_shared_layers": hyper[SHARED],
            "hidden_size_per_layer_input": hyper[INPUT],
            "vocab_size_per_layer_input": hyper["vocab_size"],
            LOGITS: hyper.get(LOGITS),
        }
        return keys

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies and gains of 1, of both kinds of blocks."""
        arrays = {}
        for kind, full in zip(KINDS, (True, False), strict=True):
            arrays[kind] = cfg.frequencies(full)
            arrays[f"{kind}_ones"] = np.ones(cfg.width_of(full), np.float32)
        return arrays

    def cap(self, cfg: Any) -> float:
        """Return the bound of logits."""
        return float(cfg.logit_cap)

    def inputs(self, layers: Layers, cfg: Any, tokens: Tensor, x: Tensor) -> Tensor:
        """Record the inputs of all blocks, side by side, of embeddings x (B T, C)."""
        rows = layers.scale(layers.embedding("per_layer_token_embd", tokens), sqrt(cfg.per_layer))
        seen = layers.scale(layers.linear(x, "per_layer_model_proj"), cfg.d_model**-0.5)
        both = layers.add(layers.rmsnorm(seen, "per_layer_proj_norm", cfg.norm_eps), rows)
        return layers.scale(both, 0.5**0.5)

    def added(self, block: Layers, cfg: Any, n: int, x: Tensor, inputs: Tensor) -> Tensor:
        """Record what the input of block n, a part of ``inputs``, makes of x."""
        part = block.columns(block.narrowed(inputs), n * cfg.per_layer, cfg.per_layer)
        return block.rmsnorm(block.geglu(x, "inp_gate", part, "proj"), "post_norm", cfg.norm_eps)

    def heads(
        self,
        block: Layers,
        cfg: Any,
        n: int,
        x: Tensor,
        positions: Tensor,
        kept: dict[int, tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Record the attention of block n; its k and v are kept for blocks without k and v."""
        full, source, eps = not cfg.windowed[n], cfg.source(n), cfg.norm_eps
        H, KV, kind = cfg.n_heads, cfg.heads(full), KINDS[not full]
        q = block.rmsnorm(block.linear(x, "attn_q"), "attn_q_norm", eps)
        if source == n:
            k = block.linear(x, "attn_k")
            v = block.linear(x, "attn_v") if block.has("attn_v") else k
            k = block.rope(block.rmsnorm(k, "attn_k_norm", eps), positions, KV, kind)
            kept[n] = k, block.rmsnorm(v, f"{kind}_ones", eps)
        # A block that has none reads the cache of the one that has, too.
        with_cache = replace(block, prefix=f"blk.{source}.")
        heads = with_cache.attention(
            block.rope(q, positions, H, kind),
            *kept[source],
            n_heads=H,
            n_kv_heads=KV,
            scale=1.0,
            window=cfg.width(n),
        )
        return block.linear(heads, "attn_output")
