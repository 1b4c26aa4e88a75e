"""The Llama family: llama, qwen2 and qwen3: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    x += W_o attention(rotate(W_q n), rotate(W_k n), W_v n)     n = rmsnorm(x)
    x += W_down (silu(W_gate n) * W_up n)                       n = rmsnorm(x)

Three lines at the end of this file declare the differences. In llama, RoPE rotates interleaved
channels, because GGUF orders the rows of W_q and W_k so. The others rotate channels half a head
apart. Files of qwen2 always have biases of q, k and v. qwen3 normalises q and k by head.
Sources: Touvron et al. 2023, arXiv:2302.13971; Qwen Team 2024, arXiv:2407.10671, and 2025,
arXiv:2505.09388; grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import (
    check_exported_heads,
    check_factors,
    check_flags,
    check_full,
    check_heads,
    check_positive,
    check_sizes,
)
from toynn.models.hyper import Hyper, refuse, shape_of, sizes_of
from toynn.models.keys import EPS, FREQ_BASE, KEY, KV, LAYER_EPS, ROTATED, VALUE
from toynn.models.registry import ARCHITECTURES, architecture, register
from toynn.models.rope import (
    check_stretch,
    factors_of,
    frequencies,
    magnitude,
    rope_scaling,
    rotated,
    stretch_of,
    unlike,
    written,
)
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, MLP, OUTPUT, QKV, SIZES, names
from toynn.models.sequence import HEAD, Folder, SequenceModel
from toynn.models.tables import Floats, Row, Shapes, Sizes, norm
from toynn.nn import Layers
from toynn.options import RecipeOptions


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a Llama-like model.

    Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    n_kv_heads
        Heads of k and v; each serves n_heads / n_kv_heads heads of q.
    rope_base
        RoPE rotates pair i of a head of D channels by position * rope_base^(-2i/D).
    head_dim
        Channels of a head, an even number; None means d_model / n_heads.
    donor_d_in
        Width of a donor's frozen table, behind an input projection; 0: the table is the model's.
    arch
        "llama", "qwen2" or "qwen3".
    rope_scaling, rope_factors
        "none", "linear", "yarn", or "llama3": pair i's frequency is divided by rope_factors[i].
    rope_factor, original_context
        The new context divided by the original one. The original context, for yarn; 0: ``context``.
    beta_fast, beta_slow
        For yarn: pairs that rotate beta_fast times or more in the original context keep their
        frequencies; pairs that rotate beta_slow times or fewer have theirs divided by rope_factor.
    yarn_magnitude, yarn_cut
        For yarn: a further factor of the magnitude. Whether the ramp is cut to whole pairs.
    output_bias, mlp_bias
        Whether attention's output matrix has a bias; whether the MLP's matrices have biases.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none", "llama3", "linear", "yarn")

    vocab: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    n_layers: int
    context: int
    rope_base: float = 1e4
    rms_eps: float = 1e-5
    head_dim: int | None = None
    donor_d_in: int = 0
    arch: str = "llama"
    rope_scaling: str = "none"
    rope_factors: tuple[float, ...] = ()
    rope_factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    yarn_magnitude: float = 1.0
    yarn_cut: bool = True
    output_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab", "d_model", "n_heads", "n_kv_heads", "d_ff", "n_layers", "context")
        check_sizes(self, *sizes, *(("head_dim",) if self.head_dim is not None else ()))
        check_sizes(self, "donor_d_in", least=0)
        check_positive(self, "rope_base", "rms_eps")
        check_flags(self, "output_bias", "mlp_bias")
        if self.arch not in ARCHITECTURES or architecture(self.arch).config_type is not type(self):
            archs = [name for name, m in ARCHITECTURES.items() if m.config_type is type(self)]
            raise ConfigError(
                f"LlamaConfig: arch must be one of {', '.join(archs)}; got {self.arch!r}"
            )
        check_heads(self)
        check_factors(self, self.scalings)
        check_stretch(self)

    @classmethod
    def tiny(cls) -> Self:
        """Return the reference program's smallest shape, 0.1 million parameters."""
        return cls(627, 64, 4, 4, 128, 2, 32)

    @classmethod
    def mid(cls) -> Self:
        """Return the reference program's middle shape, 9 million parameters."""
        return cls(4096, 256, 8, 8, 1024, 8, 256)

    @classmethod
    def smollm2_135m(cls) -> Self:
        """Return the shape of SmolLM2-135M, whose head is tied."""
        return cls(49152, 576, 9, 3, 1536, 30, 8192, rope_base=1e5)

    @property
    def norm_eps(self) -> float:
        """``rms_eps``, which is the eps of LayerNorms, too."""
        return self.rms_eps

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    def shapes(self, *, untied: bool = False, qkv_bias: bool = False) -> Shapes:
        """Return the shape of every weight by its GGUF name, in the order of the optimizer."""
        opts = RecipeOptions(untied=untied, qkv_bias=qkv_bias)
        return architecture(self.arch).shapes(self, opts)

    def inverse_frequencies(self) -> Floats:
        """Return the angle in radians by which each pair rotates from a position to the next."""
        return frequencies(self)


_Q = "attention.head_count"
#: Fields that llama.cpp reads for some architectures only.
IN_FILES = ("rope_factors", "output_bias", "mlp_bias")


class Llama(SequenceModel[LlamaConfig]):
    """An architecture of the family."""

    config_type: ClassVar[type[Any]] = LlamaConfig

    table: tuple[Row, ...] = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        replace(QKV[0], bias="qkv_bias", pairs=(_Q,)),
        replace(QKV[1], bias="qkv_bias", pairs=(KV, _Q)),
        replace(QKV[2], bias="qkv_bias"),
        norm("blk.{n}.attn_q_norm", "NQ", f"{LAYER}.self_attn.q_norm", when="head_norms"),
        norm("blk.{n}.attn_k_norm", "NK", f"{LAYER}.self_attn.k_norm", when="head_norms"),
        replace(ATTENDED, bias="output_bias"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.post_attention_layernorm"),
        *(replace(row, bias="mlp_bias") for row in MLP),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )  # fmt: skip
    hf = Folder(
        keys={
            **SIZES,
            KV: "num_key_value_heads",
            KEY: "head_dim",
            EPS: "rms_norm_eps",
            FREQ_BASE: "rope_theta",
        },
        real=frozenset((EPS, FREQ_BASE)),
        optional=frozenset((KV, KEY)),
        fixed={"hidden_act": ("silu", "swish"), "use_sliding_window": (False,)},
        shown={},  # see __init__
        biases={
            "attention_bias": (False, names(*QKV, ATTENDED)),
            "mlp_bias": (False, names(*MLP)),
        },
        zero_biases=frozenset(names(ATTENDED)),  # attention_bias adds one here, too
    )

    wide_norms = False  #: Whether q and k are normalised over their whole width, not head by head.
    norms_behind = False  #: Whether q and k are normalised after RoPE, not before.
    centred = False  #: Whether the other norms are LayerNorm, not RMSNorm.
    mlp_norm = "ffn_norm"  #: The name of the norm before the MLP.
    narrows = True
    #: Whether the configuration has rope_channels: RoPE may rotate a part of each head.
    partial = False
    #: Whether llama.cpp reads yarn's betas from this architecture's files.
    reads_betas = False
    rope_base = 1e4  #: RoPE's base where config.json does not say.
    #: Whether llama.cpp reads no heads but those of d_model / n_heads channels.
    fixed_heads = False
    #: "have no" or "always have" if biases of q, k and v are not an option.
    biases_are_fixed = ""

    def __init__(
        self,
        name: str,
        title: str,
        *,
        interleaved: bool = False,
        always_biased: bool = False,
        head_norms: bool = False,
        also: tuple[str, ...] = (),
        in_files: tuple[str, ...] = (),
    ) -> None:
        self.architecture = name
        shown = {"architectures": [f"{title}ForCausalLM"], "hidden_act": "silu"}
        biases = {} if always_biased else self.hf.biases
        self.hf = replace(self.hf, shown=shown, also=also, biases=biases)
        self.interleaved = interleaved
        self.always_biased, self.head_norms = always_biased, head_norms
        self.in_files = in_files  #: those of IN_FILES that llama.cpp reads for this architecture

    @property
    def eps_key(self) -> str:
        """GGUF's key of the epsilon that norms add under the square root."""
        return LAYER_EPS if self.centred else EPS

    def sizes(self, cfg: LlamaConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        D, donor = cfg.d_head, cfg.donor_d_in
        return {
            "V": cfg.vocab, "E": donor or cfg.d_model, "C": cfg.d_model, "F": cfg.d_ff, "D": D,
            "Q": cfg.n_heads * D, "KV": cfg.n_kv_heads * D, "donor": donor,
            "NQ": cfg.n_heads * D if self.wide_norms else D,
            "NK": cfg.n_kv_heads * D if self.wide_norms else D,
            "qkv_bias": opts.qkv_bias, "untied": opts.untied, "head_norms": self.head_norms,
            "output_bias": cfg.output_bias, "mlp_bias": cfg.mlp_bias,
        }  # fmt: skip

    def check(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        """Refuse a donor's table as the head, and qkv_bias if it is fixed. Raises ConfigError."""
        if opts.qkv_bias and self.biases_are_fixed:
            raise ConfigError(
                f"{cfg.arch}: q, k and v {self.biases_are_fixed} biases; got "
                "qkv_bias=True|--qkv-bias"
            )
        if cfg.donor_d_in and not opts.untied:
            raise ConfigError(
                "LlamaSeqEngine: donor_d_in > 0 needs untied=True|--untied: a donor's table, "
                f"{cfg.donor_d_in} wide, cannot be the head of a model {cfg.d_model} wide"
            )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        shape, d_head = self.shape(hyper)
        stored = "rope_freqs.weight" in hyper.tensors
        factors = np.ravel(hyper.file["rope_freqs.weight"]) if stored else ()
        stretch = stretch_of(hyper)
        if stored and stretch:
            kind = stretch["rope_scaling"]
            refuse(hyper.file, f"rope.scaling.type {kind} excludes rope_freqs.weight")
        cfg = self.config_type(
            **shape,
            rope_base=hyper.real(FREQ_BASE, 1e4),
            arch=self.architecture,
            **{"rope_scaling": "llama3" if len(factors) else "none"} | stretch,
            rope_factors=tuple(float(factor) for factor in factors),
            output_bias="blk.0.attn_output.bias" in hyper.tensors,
            mlp_bias="blk.0.ffn_down.bias" in hyper.tensors,
            **({"rope_channels": hyper.whole(ROTATED, d_head)} if self.partial else {}),
        )
        hyper.expect(VALUE, d_head)
        hyper.expect(ROTATED, rotated(cfg))
        return cfg

    def options(self, hyper: Hyper) -> dict[str, Any]:
        """Return the options that a file implies: an untied head, biases of q, k and v."""
        untied, biased = (name in hyper.tensors for name in (HEAD, "blk.0.attn_q.bias"))
        fixed = {} if self.biases_are_fixed else {"qkv_bias": self.always_biased or biased}
        return {"untied": untied, **fixed}

    def shape(self, hyper: Hyper) -> tuple[dict[str, Any], int]:
        """Return the model's sizes in a file, and the width of its heads."""
        return shape_of(hyper, "blk.0.attn_q.weight", eps=self.eps_key)

    def check_gguf(self, cfg: LlamaConfig) -> None:
        """Refuse fields that llama.cpp does not read. Raises ConfigError."""
        if self.always_biased or self.fixed_heads:
            check_exported_heads(cfg)
        for name in IN_FILES:
            if (value := getattr(cfg, name)) and name not in self.in_files:
                raise ConfigError(f"export: llama.cpp reads {cfg.arch} without {name}; got {value}")

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        return unlike(cfg, self.reads_betas)

    def write(self, cfg: LlamaConfig) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return {
            **sizes_of(cfg),
            KV: cfg.n_kv_heads,
            KEY: cfg.d_head,
            VALUE: cfg.d_head,
            self.eps_key: float(cfg.norm_eps),
            ROTATED: rotated(cfg),
            FREQ_BASE: float(cfg.rope_base),
            **written(cfg),
        }

    def beside(self, cfg: LlamaConfig) -> dict[str, Floats]:
        """Return the factors of RoPE's frequencies."""
        factors = np.array(cfg.rope_factors, np.float32)
        return {"rope_freqs.weight": factors} if len(factors) else {}

    def exported(self, cfg: LlamaConfig, weights: dict[str, Floats]) -> dict[str, Floats]:
        """Return the weights; a donor's table E and the input projection W become one table, E W^T.

        If files always have biases of q, k and v, missing ones become zeros.
        """
        if cfg.donor_d_in:
            projection = weights.pop("lens.proj.weight")
            weights["token_embd.weight"] = weights["token_embd.weight"] @ projection.T
        if self.always_biased:
            for name, shape in replace(cfg, donor_d_in=0).shapes(qkv_bias=True).items():
                weights.setdefault(name, np.zeros(shape, np.float32))
        return weights

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE; refuse attention that toynn does not compute."""
        factors = factors_of(config, hyper, self.rope_base)
        self.read_kinds(config, hyper)
        return {} if factors is None else {"rope_freqs.weight": factors}

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read the kind of each block's attention; refuse kinds that toynn does not compute."""
        check_full(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE's scaling."""
        return rope_scaling(hyper)

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: LlamaConfig) -> dict[str, Floats]:
        """Return RoPE's frequencies."""
        return {"inverse_frequencies": cfg.inverse_frequencies()}

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        x = self.embed(layers, cfg, tokens)
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            x = self.block(block, cfg, n, x, positions)
        return x

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C); its first sum must be ``Layers.residual``."""
        normed = self.norm(block, cfg, x, "attn_norm")
        x = block.residual(x, self.mixed(block, cfg, n, normed, positions))
        normed = self.norm(block, cfg, x, self.mlp_norm)
        return block.add(x, self.feed_forward(block, cfg, normed))

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n."""
        return self.attention(block, cfg, x, positions if self.rotates(cfg, n) else None)

    def norm(self, block: Layers, cfg: LlamaConfig, x: Tensor, name: str) -> Tensor:
        """Record a norm of x (B T, C)."""
        return (block.layernorm if self.centred else block.rmsnorm)(x, name, cfg.norm_eps)

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the MLP of x (B T, C)."""
        return block.swiglu(x, "ffn_gate", "ffn_up", "ffn_down")

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say whether block n has RoPE."""
        return True

    def scale(self, cfg: Any) -> float | None:
        """Return the factor of the scores; None means 1 / sqrt(d_head)."""
        return None

    def embed(self, layers: Layers, cfg: LlamaConfig, tokens: Tensor) -> Tensor:
        """Record the embeddings, and the input projection if there is one."""
        x = layers.embedding("token_embd", tokens)
        return layers.linear(x, "lens.proj") if cfg.donor_d_in else x

    def attention(
        self,
        block: Layers,
        cfg: LlamaConfig,
        x: Tensor,
        positions: Tensor | None,
        rope: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> Tensor:
        """Record grouped-query attention of x (B T, C); positions None means no RoPE.

        ``rope`` overrides arguments of Layers.rope. ``limits`` are further arguments of
        Layers.attention: a window, sinks.
        """
        q, k, v = (block.linear(x, f"attn_{part}") for part in "qkv")
        how = {"interleaved": self.interleaved, "magnitude": magnitude(cfg), **(rope or {})}
        q = self._head(block, cfg, q, "attn_q_norm", positions, cfg.n_heads, how | self.growth(cfg))
        k = self._head(block, cfg, k, "attn_k_norm", positions, cfg.n_kv_heads, how)
        limits |= {"n_heads": cfg.n_heads, "n_kv_heads": cfg.n_kv_heads}
        heads = block.attention(q, k, v, scale=self.scale(cfg), **limits)
        return block.linear(heads, "attn_output")

    def _head(
        self, block: Layers, cfg: Any, x: Tensor, norm: str, at: Tensor | None, count: int, how: Any
    ) -> Tensor:
        """Record the heads of q or k, normalised and rotated."""
        if block.has(norm) and not self.norms_behind:
            x = block.rmsnorm(x, norm, cfg.norm_eps)
        x = x if at is None else block.rope(x, at, count, **how)
        return block.rmsnorm(x, norm, cfg.norm_eps) if self.norms_behind else x

    def growth(self, cfg: Any) -> dict[str, Any]:
        """Return the arguments of Layers.rope that hold for q alone."""
        return {}

    def last(self, layers: Layers, cfg: LlamaConfig, x: Tensor) -> Tensor:
        """Record the last norm."""
        return self.norm(layers, cfg, x, "output_norm")

    def head(self, cfg: LlamaConfig, opts: RecipeOptions) -> str:
        """Return the output matrix, or the table to which it is tied."""
        return "output" if opts.untied else "token_embd"


register(Llama("llama", "Llama", interleaved=True, also=("mistral",), in_files=IN_FILES))
register(Llama("qwen2", "Qwen2", always_biased=True))
register(Llama("qwen3", "Qwen3", head_norms=True))
