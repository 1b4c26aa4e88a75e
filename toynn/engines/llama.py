"""Llama and its kin: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    x += W_o attention(turn(W_q n), turn(W_k n), W_v n)     n = rmsnorm(x)
    x += W_down (silu(W_gate n) * W_up n)                   n = rmsnorm(x)

``arch`` says what differs. llama: RoPE turns neighbouring channels, as GGUF orders the rows of W_q
and W_k. qwen2: RoPE turns channels half a head apart. qwen3: that too, and each head of q and k is
normalised before it. The weights have their GGUF names.
Sources: Touvron et al. 2023, arXiv:2302.13971; Qwen Team 2024, arXiv:2407.10671, and 2025,
arXiv:2505.09388.
"""

from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toynn import ops
from toynn.engines._engine import check_sizes
from toynn.engines._hyper import Hyper, refuse
from toynn.engines._lora import LoRAEngine
from toynn.errors import ConfigError
from toynn.options import RecipeOptions
from toynn.tape import Tensor

__all__ = ["LlamaConfig", "LlamaSeqEngine"]

_ARCHS = ("llama", "qwen2", "qwen3")
_SCALINGS = ("none", "llama3")
_STD = 0.02  # of embeddings and head


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a Llama-like model.

    Attributes
    ----------
    n_kv_heads
        Heads of k and v; each serves n_heads / n_kv_heads heads of q.
    rope_base
        RoPE turns pair i of a head of D channels by position * rope_base^(-2i/D).
    head_dim
        Channels of a head, an even number; None means d_model / n_heads.
    donor_d_in
        Width of a donor's embedding table, which stays frozen and is seen through a trained lens
        (d_model, donor_d_in); 0 means a trained table of the model's own.
    arch
        "llama", "qwen2" or "qwen3".
    rope_scaling, rope_factors
        "none", or "llama3": the frequency of pair i is divided by rope_factors[i].
    """

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

    def __post_init__(self) -> None:
        sizes = ("vocab", "d_model", "n_heads", "n_kv_heads", "d_ff", "n_layers", "context")
        check_sizes(self, *sizes, *(("head_dim",) if self.head_dim is not None else ()))
        check_sizes(self, "donor_d_in", least=0)
        for name in ("rope_base", "rms_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not (isfinite(value) and value > 0):
                raise ConfigError(f"LlamaConfig: {name} must be a number above 0; got {value!r}")
        if self.arch not in _ARCHS:
            raise ConfigError(
                f"LlamaConfig: arch must be one of {', '.join(_ARCHS)}; got {self.arch!r}"
            )
        if self.head_dim is None and self.d_model % self.n_heads:
            raise ConfigError(
                "LlamaConfig: n_heads must divide d_model, unless head_dim is given; got "
                f"{self.n_heads} and {self.d_model}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"LlamaConfig: n_kv_heads must divide n_heads; got {self.n_kv_heads} and "
                f"{self.n_heads}"
            )
        if self.d_head % 2:
            raise ConfigError(f"LlamaConfig: RoPE turns pairs: a head of {self.d_head} is odd")
        self._check_rope()

    def _check_rope(self) -> None:
        try:
            object.__setattr__(self, "rope_factors", tuple(map(float, self.rope_factors)))
        except (TypeError, ValueError):
            raise ConfigError(
                f"LlamaConfig: rope_factors must be numbers; got {self.rope_factors!r}"
            ) from None
        if self.rope_scaling not in _SCALINGS:
            raise ConfigError(
                f"LlamaConfig: rope_scaling {self.rope_scaling!r} is not known; it must be one of "
                f"{', '.join(_SCALINGS)}"
            )
        needed = self.d_head // 2 if self.rope_scaling == "llama3" else 0
        if len(self.rope_factors) != needed:
            raise ConfigError(
                f"LlamaConfig: rope_scaling {self.rope_scaling!r} needs {needed} rope_factors; got "
                f"{len(self.rope_factors)}"
            )
        if not all(isfinite(factor) and factor > 0 for factor in self.rope_factors):
            raise ConfigError("LlamaConfig: every one of rope_factors must be a number above 0")

    @classmethod
    def tiny(cls) -> Self:
        """Return the seeds' smallest shape, 0.1 million parameters."""
        return cls(627, 64, 4, 4, 128, 2, 32)

    @classmethod
    def mid(cls) -> Self:
        """Return the seeds' middle shape, 9 million parameters."""
        return cls(4096, 256, 8, 8, 1024, 8, 256)

    @classmethod
    def smollm2_135m(cls) -> Self:
        """Return the shape of SmolLM2-135M, whose head is tied."""
        return cls(49152, 576, 9, 3, 1536, 30, 8192, rope_base=1e5)

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    def shapes(self, *, untied: bool = False, qkv_bias: bool = False) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by its GGUF name, in the order of the optimizer."""
        C, F, D = self.d_model, self.d_ff, self.d_head
        Q, KV = self.n_heads * D, self.n_kv_heads * D
        block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (C,)}
        for name, rows in (("attn_q", Q), ("attn_k", KV), ("attn_v", KV)):
            block[f"{name}.weight"] = (rows, C)
            if qkv_bias:
                block[f"{name}.bias"] = (rows,)
        if self.arch == "qwen3":
            block |= {"attn_q_norm.weight": (D,), "attn_k_norm.weight": (D,)}
        block |= {
            "attn_output.weight": (C, Q),
            "ffn_norm.weight": (C,),
            "ffn_gate.weight": (F, C),
            "ffn_up.weight": (F, C),
            "ffn_down.weight": (C, F),
        }
        donor = self.donor_d_in
        return {
            "token_embd.weight": (self.vocab, donor or C),
            **({"lens.proj.weight": (C, donor)} if donor else {}),
            **{f"blk.{n}.{k}": shape for n in range(self.n_layers) for k, shape in block.items()},
            "output_norm.weight": (C,),
            **({"output.weight": (self.vocab, C)} if untied else {}),
        }

    def inverse_frequencies(self) -> NDArray[np.float32]:
        """Return by how much RoPE turns each pair of a head from one position to the next."""
        exponents = np.arange(0, self.d_head, 2) / self.d_head
        frequencies = float(self.rope_base) ** -exponents
        return (frequencies / (self.rope_factors or 1.0)).astype(np.float32)


class LlamaSeqEngine(LoRAEngine[LlamaConfig]):
    """A Llama-like model and its training step.

    Each step rounds the matrices to ``weight_dtype`` before it multiplies by them; what it trains
    is their float32 originals. Rows of the embedding table, biases and gains are not rounded.
    """

    architectures = _ARCHS

    _frequencies: Tensor

    # -- The seeds' names ----------------------------------------------------------------------

    @property
    def t_seq_token_ids(self) -> Tensor:
        """The input of token ids, once the training step is built."""
        return self._check_built("t_seq_token_ids").tokens

    @property
    def t_seq_positions(self) -> Tensor:
        """The input of positions, once the training step is built."""
        return self._check_built("t_seq_positions").positions

    @property
    def t_seq_token_embed(self) -> Tensor:
        """The embedding table: the donor's, (vocab, donor_d_in), where there is a lens."""
        return self._tensor("token_embd.weight")

    @property
    def t_seq_w_proj(self) -> Tensor:
        """The lens (d_model, donor_d_in)."""
        return self._tensor("lens.proj.weight")

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ConfigError(f"LlamaSeqEngine: there is no {name}: donor_d_in is 0")
        return self.tensors[name]

    # -- GGUF ----------------------------------------------------------------------------------

    @classmethod
    def _from_hyper(cls, hyper: Hyper) -> tuple[LlamaConfig, dict[str, Any]]:
        d_model, n_heads = hyper.whole("embedding_length"), hyper.whole("attention.head_count")
        key_length = hyper.whole("attention.key_length", max(1, d_model // n_heads))
        if key_length > hyper.rows("blk.0.attn_q.weight"):
            refuse(hyper.file, f"heads of {key_length} channels do not fit blk.0.attn_q.weight")
        stored = "rope_freqs.weight" in hyper.tensors
        factors = np.ravel(hyper.file["rope_freqs.weight"]) if stored else ()
        cfg = LlamaConfig(
            vocab=hyper.vocabulary,
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=hyper.whole("attention.head_count_kv", n_heads),
            d_ff=hyper.whole("feed_forward_length"),
            n_layers=hyper.layers,
            context=hyper.whole("context_length"),
            rope_base=hyper.real("rope.freq_base", 1e4),
            rms_eps=hyper.real("attention.layer_norm_rms_epsilon"),
            head_dim=None if key_length * n_heads == d_model else key_length,
            arch=hyper.file.architecture,
            rope_scaling="llama3" if len(factors) else "none",
            rope_factors=tuple(float(factor) for factor in factors),
        )
        hyper.expect("attention.value_length", cfg.d_head)
        hyper.expect("rope.dimension_count", cfg.d_head)  # all channels of a head turn
        bias = cfg.arch == "qwen2" or "blk.0.attn_q.bias" in hyper.tensors
        return cfg, {"untied": "output.weight" in hyper.tensors, "qkv_bias": bias}

    def _to_hyper(self) -> tuple[str, dict[str, Any]]:
        cfg = self.config
        if cfg.arch != "llama" and cfg.rope_scaling != "none":
            raise ConfigError(f"export: files of {cfg.arch} have no place for RoPE factors")
        if cfg.arch == "qwen2" and cfg.d_head * cfg.n_heads != cfg.d_model:
            raise ConfigError(
                f"export: llama.cpp reads qwen2 with heads of d_model / n_heads only; got "
                f"{cfg.n_heads} heads of {cfg.d_head} in {cfg.d_model}"
            )
        return cfg.arch, {
            "context_length": cfg.context,
            "embedding_length": cfg.d_model,
            "feed_forward_length": cfg.d_ff,
            "block_count": cfg.n_layers,
            "attention.head_count": cfg.n_heads,
            "attention.head_count_kv": cfg.n_kv_heads,
            "attention.key_length": cfg.d_head,
            "attention.value_length": cfg.d_head,
            "attention.layer_norm_rms_epsilon": float(cfg.rms_eps),
            "rope.dimension_count": cfg.d_head,
            "rope.freq_base": float(cfg.rope_base),
        }

    def _beside(self) -> dict[str, NDArray[np.float32]]:
        factors = np.array(self.config.rope_factors, np.float32)
        return {"rope_freqs.weight": factors} if len(factors) else {}

    def _exported(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights; a donor's table E seen through the lens W becomes one, E W^T.

        qwen2 files always have biases of q, k and v: without any in the model they are zero.
        """
        cfg, weights = self.config, self.weights()
        if cfg.donor_d_in:
            lens = weights.pop("lens.proj.weight")
            weights["token_embd.weight"] = weights["token_embd.weight"] @ lens.T
        if cfg.arch == "qwen2":
            shapes = replace(cfg, donor_d_in=0).shapes(qkv_bias=True)
            weights |= {
                name: np.zeros(shape, np.float32)
                for name, shape in shapes.items()
                if name not in weights
            }
        return weights

    # -- Weights -------------------------------------------------------------------------------

    def _check(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        super()._check(cfg, opts)
        if cfg.donor_d_in and not opts.untied:
            raise ConfigError(
                "LlamaSeqEngine: donor_d_in > 0 needs untied=True: a donor's table, "
                f"{cfg.donor_d_in} wide, cannot be the head of a model {cfg.d_model} wide"
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        opts = self.options
        return self.config.shapes(untied=opts.untied, qkv_bias=opts.qkv_bias)

    def _frozen(self) -> frozenset[str]:
        return frozenset(["token_embd.weight"] if self.config.donor_d_in else [])

    def _declare_constants(self) -> None:
        frequencies = self.config.inverse_frequencies()
        self._frequencies = self.session.mapped("inverse_frequencies", frequencies)

    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        if name in ("token_embd.weight", "output.weight"):
            return _STD
        return (self.options.init_scale if name.startswith("blk.") else 1.0) / sqrt(shape[1])

    # -- Forward -------------------------------------------------------------------------------

    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        s, w = self.session, self.tensors
        x = ops.embedding(s, w["token_embd.weight"], tokens)
        if self.config.donor_d_in:
            x = self._project(x, "lens.proj")
        for n in range(self.n_layers):
            with s.tape.block(f"blk.{n}"):
                x = self._record_block(x, positions, f"blk.{n}", batch)
        return self._norm(x, "output_norm")

    def _head(self) -> str:
        return "output" if self.options.untied else "token_embd"

    def _record_block(self, x: Tensor, positions: Tensor, block: str, batch: int) -> Tensor:
        s, normed = self.session, self._norm(x, f"{block}.attn_norm")
        x = ops.add(s, x, self._record_attention(normed, positions, block, batch))
        normed = self._norm(x, f"{block}.ffn_norm")
        return ops.add(s, x, self._record_mlp(normed, block))

    def _record_attention(self, x: Tensor, positions: Tensor, block: str, batch: int) -> Tensor:
        """Record grouped-query attention of x (B T, C). Source: arXiv:2305.13245."""
        s, H, KV = self.session, self.n_heads, self.config.n_kv_heads
        q, k, v = (self._project(x, f"{block}.attn_{part}") for part in "qkv")
        if self.config.arch == "qwen3":
            q, k = self._norm(q, f"{block}.attn_q_norm"), self._norm(k, f"{block}.attn_k_norm")
        interleaved = self.config.arch == "llama"
        q, k = (
            ops.rope(s, part, positions, self._frequencies, heads, interleaved=interleaved)
            for part, heads in ((q, H), (k, KV))
        )
        cache = self._caches.get(block)
        heads = ops.attention(s, q, k, v, batch=batch, n_heads=H, n_kv_heads=KV, cache=cache)
        return self._project(heads, f"{block}.attn_output")

    def _record_mlp(self, x: Tensor, block: str) -> Tensor:
        """Record down(silu(gate(x)) * up(x)). Source: Shazeer 2020, arXiv:2002.05202."""
        gate, up = (self._project(x, f"{block}.ffn_{part}") for part in ("gate", "up"))
        return self._project(ops.swiglu(self.session, gate, up), f"{block}.ffn_down")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return ops.rmsnorm(self.session, x, self.tensors[f"{name}.weight"], self.config.rms_eps)
