"""GPT-2: learned positions, pre-LayerNorm blocks, fused QKV with bias, tanh GELU, tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn import ops
from toynn._kernels import random
from toynn.engines._engine import check_sizes, gain_or_zeros
from toynn.engines._hyper import Hyper
from toynn.engines._lora import LoRAEngine
from toynn.errors import ConfigError
from toynn.options import RecipeOptions
from toynn.tape import Tensor

__all__ = ["GPT2Config", "GPT2SeqEngine"]

_INITS = ("gpt2", "lcg")
_STD = 0.02


@dataclass(frozen=True)
class GPT2Config:
    """Shape of a GPT-2 model.

    ``init="gpt2"`` draws matrices and embeddings from N(0, 0.02), the residual projections scaled
    by 1/sqrt(2 n_layers). ``init="lcg"`` is the stream of the Ruby program that toynn follows, bit
    for bit: all its weights are negative (see docs/seed-names.md).
    """

    vocab: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    context: int
    init: str = "gpt2"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "d_model", "n_heads", "d_ff", "n_layers", "context")
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"GPT2Config: n_heads must divide d_model; got {self.n_heads} and {self.d_model}"
            )
        if self.init not in _INITS:
            raise ConfigError(
                f"GPT2Config: init must be one of {', '.join(_INITS)}; got {self.init!r}"
            )
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < inf:
            raise ConfigError(
                f"GPT2Config: norm_eps must be a finite float above 0; got {self.norm_eps!r}"
            )

    @property
    def n_kv_heads(self) -> int:
        """Heads of k and v: as many as of q."""
        return self.n_heads

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by its GGUF name, in the order of the optimizer."""
        C, F = self.d_model, self.d_ff
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab, C),
            "position_embd.weight": (self.context, C),
        }
        for n in range(self.n_layers):
            for name, shape in (
                ("attn_norm", (C,)),
                ("attn_qkv", (3 * C, C)),
                ("attn_output", (C, C)),
                ("ffn_norm", (C,)),
                ("ffn_up", (F, C)),
                ("ffn_down", (C, F)),
            ):
                shapes[f"blk.{n}.{name}.weight"] = shape
                shapes[f"blk.{n}.{name}.bias"] = shape[:1]
        return shapes | {"output_norm.weight": (C,), "output_norm.bias": (C,)}


class GPT2SeqEngine(LoRAEngine[GPT2Config]):
    """A GPT-2 model and its training step."""

    LN_EPS = 1e-5  # GPT2Config.norm_eps, unless a file says otherwise

    architectures = ("gpt2",)

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
        """Build the whole training step at T = context, B = 1, weights from the LCG stream."""
        cfg = GPT2Config(vocab, d_model, n_heads, d_ff, n_layers, context, init="lcg")
        self.realize_for_random_init(cfg, RecipeOptions(seed=seed))
        self.build_training_step()

    def _check(self, cfg: GPT2Config, opts: RecipeOptions) -> None:
        super()._check(cfg, opts)
        if opts.untied:
            raise ConfigError("GPT-2: the head is tied to token_embd.weight; untied=True is not it")
        if opts.weight_dtype != "f32":
            raise ConfigError(f"GPT-2: weight_dtype must be f32; got {opts.weight_dtype!r}")

    # -- GGUF ----------------------------------------------------------------------------------

    @classmethod
    def _from_hyper(cls, hyper: Hyper) -> tuple[GPT2Config, dict[str, Any]]:
        cfg = GPT2Config(
            vocab=hyper.vocabulary,
            d_model=hyper.whole("embedding_length"),
            n_heads=hyper.whole("attention.head_count"),
            d_ff=hyper.whole("feed_forward_length"),
            n_layers=hyper.layers,
            context=hyper.whole("context_length"),
            norm_eps=hyper.real("attention.layer_norm_epsilon"),
        )
        return cfg, {}

    def _to_hyper(self) -> tuple[str, dict[str, Any]]:
        return "gpt2", {
            "context_length": self.config.context,
            "embedding_length": self.config.d_model,
            "feed_forward_length": self.config.d_ff,
            "block_count": self.config.n_layers,
            "attention.head_count": self.config.n_heads,
            "attention.layer_norm_epsilon": self.config.norm_eps,
        }

    # -- Weights and forward pass --------------------------------------------------------------

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return self.config.shapes()

    def _draw(self) -> Iterable[tuple[str, NDArray[np.float32]]]:
        lcg = self.config.init == "lcg"
        return _draw_lcg(self.config, self.options.seed).items() if lcg else super()._draw()

    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        std = _STD * self.options.init_scale if name.startswith("blk.") else _STD
        residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
        return std / sqrt(2 * self.n_layers) if residual else std

    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        s, w = self.session, self.tensors
        x = ops.add(
            s,
            ops.embedding(s, w["token_embd.weight"], tokens),
            ops.embedding(s, w["position_embd.weight"], positions),
        )
        for n in range(self.n_layers):
            with s.tape.block(f"blk.{n}"):
                x = self._record_block(x, f"blk.{n}", batch)
        return self._norm(x, "output_norm")

    def _head(self) -> str:
        return "token_embd"

    def _record_block(self, x: Tensor, block: str, batch: int) -> Tensor:
        s = self.session
        qkv = self._project(self._norm(x, f"{block}.attn_norm"), f"{block}.attn_qkv")  # (B T, 3 C)
        cache = self._caches.get(block)
        heads = ops.attention(s, qkv, batch=batch, n_heads=self.n_heads, cache=cache)  # (B T, C)
        x = ops.add(s, x, self._project(heads, f"{block}.attn_output"))
        normed = self._norm(x, f"{block}.ffn_norm")
        hidden = self._project(normed, f"{block}.ffn_up", "gelu")  # (B T, F)
        return ops.add(s, x, self._project(hidden, f"{block}.ffn_down"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        gain, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return ops.layernorm(self.session, x, gain, bias, self.config.norm_eps)


def _draw_lcg(cfg: GPT2Config, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return initial weights from the LCG: one stream, per head q, k, v; then o, fc, proj."""
    weights = {name: gain_or_zeros(name, shape) for name, shape in cfg.shapes().items()}
    state = seed

    def draw(values: NDArray[np.float32]) -> None:
        nonlocal state
        state = random.lcg_uniform(values.reshape(-1), state, scale=_STD)

    draw(weights["token_embd.weight"])
    draw(weights["position_embd.weight"])
    for n in range(cfg.n_layers):
        qkv = weights[f"blk.{n}.attn_qkv.weight"].reshape(3, cfg.n_heads, cfg.d_head, cfg.d_model)
        for head in range(cfg.n_heads):
            for part in range(3):
                draw(qkv[part, head])
        for name in ("attn_output", "ffn_up", "ffn_down"):
            draw(weights[f"blk.{n}.{name}.weight"])
    return weights
