"""GPT-2: learned positions, pre-LayerNorm blocks, fused QKV with bias, tanh GELU, tied head.

    x += W_o attention(W_qkv n)             n = layernorm(x)
    x += W_down gelu(W_up n)                n = layernorm(x)

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

from toynn._kernels import random
from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_divided, check_sizes
from toynn.models.hyper import Hyper, sizes_of
from toynn.models.keys import LAYER_EPS
from toynn.models.registry import architecture, register
from toynn.models.sequence import Folder, SequenceModel
from toynn.models.tables import Floats, Shapes, Sizes, matrix, norm, table
from toynn.nn import Layers
from toynn.options import RecipeOptions

_INITS = ("gpt2", "lcg")
_STD = 0.02


@dataclass(frozen=True)
class GPT2Config:
    """Shape of a GPT-2 model.

    ``init="gpt2"`` draws matrices and embeddings from N(0, 0.02) (standard deviation), and scales
    the residual projections by 1/sqrt(2 n_layers). ``init="lcg"`` draws what the reference program
    in Ruby draws, bit for bit; all these numbers are negative (see docs/seed-names.md).

    Raises ConfigError for sizes that make no model.
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
        check_divided(self)
        if self.init not in _INITS:
            raise ConfigError(
                f"GPT2Config: init must be one of {', '.join(_INITS)}; got {self.init!r}"
            )

    @property
    def arch(self) -> str:
        """The architecture, as GGUF files call it."""
        return "gpt2"

    @property
    def n_kv_heads(self) -> int:
        """Heads of k and v: as many as of q."""
        return self.n_heads

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    def shapes(self) -> Shapes:
        """Return the shape of every weight by its GGUF name, in the order of the optimizer."""
        return architecture(self.arch).shapes(self, RecipeOptions())


def _residual(cfg: GPT2Config, shape: tuple[int, ...]) -> float:
    return _STD / sqrt(2 * cfg.n_layers)


_conv = partial(matrix, bias=True, transposed=True)


class GPT2(SequenceModel[GPT2Config]):
    """The architecture gpt2."""

    architecture = "gpt2"
    config_type = GPT2Config

    table = (
        table("token_embd", "V C", "transformer.wte", std=_STD),
        table("position_embd", "T C", "transformer.wpe", std=_STD),
        norm("blk.{n}.attn_norm", "C", "transformer.h.{n}.ln_1", bias=True),
        _conv("blk.{n}.attn_qkv", "3C C", "transformer.h.{n}.attn.c_attn", std=_STD),
        _conv("blk.{n}.attn_output", "C C", "transformer.h.{n}.attn.c_proj", std=_residual),
        norm("blk.{n}.ffn_norm", "C", "transformer.h.{n}.ln_2", bias=True),
        _conv("blk.{n}.ffn_up", "F C", "transformer.h.{n}.mlp.c_fc", std=_STD),
        _conv("blk.{n}.ffn_down", "C F", "transformer.h.{n}.mlp.c_proj", std=_residual),
        norm("output_norm", "C", "transformer.ln_f", bias=True),
        matrix("output", "V C", "lm_head", std=_STD, when=False),  # it is tied to token_embd
    )
    hf = Folder(
        keys={
            "vocab_size": "vocab_size",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            LAYER_EPS: "layer_norm_epsilon",
        },
        real=frozenset((LAYER_EPS,)),
        fixed={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
        },
        shown={"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"},
        tied=True,
    )
    narrows = True

    def sizes(self, cfg: GPT2Config, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters."""
        C = cfg.d_model
        return {"V": cfg.vocab, "T": cfg.context, "C": C, "3C": 3 * C, "F": cfg.d_ff}

    def check(self, cfg: GPT2Config, opts: RecipeOptions) -> None:
        """Refuse an untied head and rounded weights. Raises ConfigError."""
        if opts.untied:
            raise ConfigError(
                "GPT-2: the head is tied to token_embd.weight; got untied=True|--untied"
            )
        if opts.weight_dtype != "f32":
            raise ConfigError(f"GPT-2: weight_dtype must be f32; got {opts.weight_dtype!r}")

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> GPT2Config:
        """Return a file's configuration."""
        return GPT2Config(**hyper.sizes(), norm_eps=hyper.real(LAYER_EPS))

    def write(self, cfg: GPT2Config) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return sizes_of(cfg) | {LAYER_EPS: cfg.norm_eps}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Set n_inner, which most folders leave out, to 4 n_embd."""
        hyper.setdefault("feed_forward_length", 4 * hyper.get("embedding_length", 0))
        return {}

    # -- Weights and forward pass --------------------------------------------------------------

    def start(self, cfg: GPT2Config, opts: RecipeOptions) -> Iterable[tuple[str, Floats]]:
        """Return the initial values of all weights."""
        return _lcg(self, cfg, opts).items() if cfg.init == "lcg" else super().start(cfg, opts)

    def forward(self, layers: Layers, cfg: GPT2Config, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        x = layers.add(
            layers.embedding("token_embd", tokens), layers.embedding("position_embd", positions)
        )
        for block in layers.blocks(cfg.n_layers):
            qkv = block.linear(block.layernorm(x, "attn_norm", cfg.norm_eps), "attn_qkv")
            heads = block.attention(qkv, n_heads=cfg.n_heads)  # (B T, C)
            x = block.residual(x, block.linear(heads, "attn_output"))
            normed = block.layernorm(x, "ffn_norm", cfg.norm_eps)
            x = block.add(x, block.mlp(normed, "ffn_up", "ffn_down", "gelu_tanh"))
        return x

    def last(self, layers: Layers, cfg: GPT2Config, x: Tensor) -> Tensor:
        """Record the last norm."""
        return layers.layernorm(x, "output_norm", cfg.norm_eps)

    def head(self, cfg: GPT2Config, opts: RecipeOptions) -> str:
        """Return the embedding table, to which the head is tied."""
        return "token_embd"


def _lcg(model: GPT2, cfg: GPT2Config, opts: RecipeOptions) -> dict[str, Floats]:
    """Return initial weights from one stream of the LCG: q, k, v by head, then o, fc, proj."""
    weights = dict(SequenceModel.start(model, cfg, opts))
    state = opts.seed

    def draw(values: Floats) -> None:
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


register(GPT2())
