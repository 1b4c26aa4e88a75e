"""GPT-2: learned positions, pre-LayerNorm blocks, fused QKV with bias, tanh GELU, tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from toynn import nn, ops
from toynn._kernels import random
from toynn.engines._sequence import SequenceEngine
from toynn.errors import ConfigError, LifecycleError
from toynn.options import RecipeOptions
from toynn.session import Session
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

    def __post_init__(self) -> None:
        for name in ("vocab", "d_model", "n_heads", "d_ff", "n_layers", "context"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"GPT2Config: {name} must be a whole number >= 1; got {value!r}")
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"GPT2Config: n_heads must divide d_model; got {self.n_heads} and {self.d_model}"
            )
        if self.init not in _INITS:
            raise ConfigError(
                f"GPT2Config: init must be one of {', '.join(_INITS)}; got {self.init!r}"
            )

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


class GPT2SeqEngine(SequenceEngine):
    """A GPT-2 model and its training step.

    ``realize`` does all of it; ``build_forward`` and ``build_train_step`` are its last two parts.
    """

    LN_EPS = 1e-5

    config: GPT2Config
    d_model: int
    n_heads: int
    d_head: int
    d_ff: int
    n_layers: int
    t_tok: Tensor
    t_pos: Tensor
    t_labels: Tensor
    t_hp: Tensor
    t_loss: Tensor
    t_logits: Tensor

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

    def realize_for_random_init(self, cfg: GPT2Config, opts: RecipeOptions) -> None:
        """Declare and draw the weights, then record and compile the training step."""
        if self._session is not None:
            raise LifecycleError("GPT2SeqEngine.realize: once only; make a new engine")
        self._check(cfg, opts)
        self.config = cfg
        self.vocab, self.context = cfg.vocab, cfg.context
        self.d_model, self.n_heads, self.d_head = cfg.d_model, cfg.n_heads, cfg.d_head
        self.d_ff, self.n_layers = cfg.d_ff, cfg.n_layers
        self.t_seq, self.t_batch = opts.t_seq or cfg.context, opts.t_batch
        s = self._session = Session(self._backend, opts.seed, self._n_threads)
        self.parameters = {name: s.parameter(name, shape) for name, shape in cfg.shapes().items()}
        s.finalize_weights()
        draw = _draw_lcg if cfg.init == "lcg" else _draw_normal
        for name, values in draw(cfg, opts).items():
            s.upload(self.parameters[name], values)
        self.build_forward()
        self.build_train_step()

    @staticmethod
    def _check(cfg: GPT2Config, opts: RecipeOptions) -> None:
        if opts.t_seq > cfg.context:
            raise ConfigError(f"GPT-2: t_seq {opts.t_seq} is longer than the context {cfg.context}")
        if opts.untied:
            raise ConfigError("GPT-2: the head is tied to token_embd.weight; untied=True is not it")
        if opts.weight_dtype != "f32":
            raise ConfigError(f"GPT-2: weight_dtype must be f32; got {opts.weight_dtype!r}")

    def build_forward(self) -> None:
        """Record the forward pass, up to the loss."""
        if self._step is not None:
            raise LifecycleError("GPT2SeqEngine.build_forward: realize() has done it already")
        step = self._step = self._record_loss(self.t_batch, self.t_seq, dense=False)
        assert step.labels is not None and step.hp is not None and step.loss is not None
        self.t_tok, self.t_pos, self.t_logits = step.tokens, step.positions, step.logits
        self.t_labels, self.t_hp, self.t_loss = step.labels, step.hp, step.loss

    def build_train_step(self) -> None:
        """Record backward and AdamW, and compile the step."""
        if self._step is None:
            raise LifecycleError("GPT2SeqEngine.build_train_step before build_forward()")
        self._record_update(self._step)
        self.session.realize()

    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        s, w = self.session, self.parameters
        x = ops.add(
            s,
            ops.embedding(s, w["token_embd.weight"], tokens),
            ops.embedding(s, w["position_embd.weight"], positions),
        )
        for n in range(self.n_layers):
            x = self._record_block(x, f"blk.{n}", batch)
        x = self._norm(x, "output_norm")
        return ops.linear(s, x, w["token_embd.weight"])

    def _record_block(self, x: Tensor, block: str, batch: int) -> Tensor:
        s = self.session
        attended = nn.self_attention(
            s,
            self._norm(x, f"{block}.attn_norm"),
            *self._affine(f"{block}.attn_qkv"),
            *self._affine(f"{block}.attn_output"),
            batch=batch,
            n_heads=self.n_heads,
        )
        x = ops.add(s, x, attended)
        hidden = nn.mlp(
            s,
            self._norm(x, f"{block}.ffn_norm"),
            *self._affine(f"{block}.ffn_up"),
            *self._affine(f"{block}.ffn_down"),
        )
        return ops.add(s, x, hidden)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return ops.layernorm(self.session, x, *self._affine(name), self.LN_EPS)

    def _affine(self, name: str) -> tuple[Tensor, Tensor]:
        return self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]


def _draw_normal(cfg: GPT2Config, opts: RecipeOptions) -> dict[str, NDArray[np.float32]]:
    """Return initial weights from N(0, 0.02); each tensor has a stream of its own."""
    weights = {}
    for stream, (name, shape) in enumerate(cfg.shapes().items()):
        std = _STD
        if name.startswith("blk."):
            std *= opts.init_scale
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            std /= sqrt(2 * cfg.n_layers)
        values = _constant(name, shape)
        if len(shape) == 2:
            random.normal(values.reshape(-1), opts.seed, stream, std)
        weights[name] = values
    return weights


def _draw_lcg(cfg: GPT2Config, opts: RecipeOptions) -> dict[str, NDArray[np.float32]]:
    """Return initial weights from the LCG: one stream, per head q, k, v; then o, fc, proj."""
    weights = {name: _constant(name, shape) for name, shape in cfg.shapes().items()}
    state = opts.seed

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


def _constant(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return ones for a norm's gain, zeros for everything else."""
    gain = name.endswith("norm.weight")
    return np.ones(shape, np.float32) if gain else np.zeros(shape, np.float32)
