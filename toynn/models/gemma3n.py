"""Gemma 3n: four streams, one of them computed by blocks; low-rank residuals, sparse gates.

    x_0 = sqrt(C) W_e[token],  x_i = length(P_i x_0)               each as long as x_0
    p_i = x_i + sum_j w_ij x_j                  w = W_predict r(x_0)
    n = rmsnorm(p_0)
    a = p_0 + rmsnorm(W_o attention(rotate(rmsnorm(W_q n)), rotate(rmsnorm(W_k n)), u(W_v n)))
    a = (a + n + rmsnorm(R L n)) / sqrt(2)
    a += rmsnorm(W_down (gelu(topk(W_gate n)) * W_up n))           n = rmsnorm(a)
    x_i = p_i + (1 + c_i) (a - p_0)             c = W_correct r(a)
    x_i += rmsnorm(W_proj (gelu(W_inp (g x_0)) * e))               i > 0

    result: mean of x_0 and of length(U_i x_i)                     each as long as x_0

r(x) = tanh(W_router (rmsnorm(x) / C)) has a number for each stream. Gaussian top-k is topk: in a
block of sparsity s > 0 it keeps the numbers above mean + z std of their row. It sets all others to
0; z is the quantile of s. The file sharing.py defines u, e and what blocks share. Gains are as in
folders, not 1 + w. Every fifth block has no window, all others have one. In training, transformers
clamps W_predict and W_correct to altup_coef_clip. toynn clamps nothing: a folder with larger values
is refused. In llama.cpp some values are fixed: 20 blocks have k and v, the first 10 have sparsity
0.95. Inputs have 256 numbers, and the rank is 64. Its std divides by n - 1.
Sources: Gemma Team 2025, gemma3n of transformers and of llama.cpp; AltUp: Baykal et al. 2023,
arXiv:2301.13310; Laurel: Menghani et al. 2024, arXiv:2411.07501.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.formats.hf.name_mapping import Order
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive, check_sizes
from toynn.models.gemma import bases_of
from toynn.models.hyper import Hyper, refuse, shape_of
from toynn.models.keys import FACTOR, FREQ_BASE, KEY, KV, LOCAL_FREQ_BASE, LOGITS, PATTERN, WIDTH
from toynn.models.registry import register
from toynn.models.rows import EMBEDDING, LAYER, MLP, OUTPUT
from toynn.models.sharing import (
    FOR_ALL,
    FOR_BLOCK,
    HEADS,
    INPUT,
    KINDS,
    SHARED,
    Sharing,
    SharingConfig,
)
from toynn.models.tables import Floats, Sizes, matrix, norm
from toynn.nn import Layers
from toynn.options import RecipeOptions

STREAMS = 4
_ALTUP, _LAUREL = f"{LAYER}.altup", f"{LAYER}.laurel"
_SPARSITY = "activation_sparsity_scale"
_ACTIVE, _STREAMS, _RANK = "altup.active_idx", "altup.num_inputs", "laurel.rank"
#: What llama.cpp assumes: blocks with k and v, sparse blocks, and sizes.
_WITH_KV, _SPARSE, _SHARE = 20, 10, 0.95
_MOST, _MOST_IDS = 1 << 40, 1 << 24  # numbers of a matrix; tokens of a vocabulary
_CLIP = "altup.coef_clip"  # of folders alone
_ROWS, _ONES = "vocab_rows", "ones"
_GIVEN = {"per_layer": 256, "laurel_rank": 64, "logit_cap": 30.0}


@dataclass(frozen=True)
class Gemma3nConfig(SharingConfig):
    """Shape of a Gemma 3n. Raises ConfigError for sizes and blocks that make no model.

    Attributes
    ----------
    laurel_rank
        Rank of the residual matrix of a block.
    sparsity
        For each block, the share of its MLP's gates that are set to 0. Empty: llama.cpp's values.
    block_widths
        Width of each block's MLP, of which d_ff is the largest; empty: d_ff.
    """

    period: ClassVar[int] = 5
    full_last: ClassVar[bool] = False

    arch: str = "gemma3n"
    per_layer: int = 256
    logit_cap: float = 30.0
    laurel_rank: int = 64
    sparsity: tuple[float, ...] = ()
    block_widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "per_layer", "laurel_rank")
        check_positive(self, "logit_cap")
        shares = tuple(map(float, self.sparsity)) or usual_sparsity(self.n_layers)
        if len(shares) != self.n_layers or not all(0 <= share < 1 for share in shares):
            raise ConfigError(
                f"Gemma3nConfig: sparsity must be {self.n_layers} numbers from 0 to less than 1; "
                f"got {self.sparsity}"
            )
        object.__setattr__(self, "sparsity", shares)
        widths = tuple(self.block_widths)
        if widths and (len(widths) != self.n_layers or not all(width >= 1 for width in widths)):
            raise ConfigError(
                f"Gemma3nConfig: block_widths must be {self.n_layers} whole numbers >= 1; got "
                f"{self.block_widths}"
            )
        object.__setattr__(self, "d_ff", max(widths, default=self.d_ff))
        object.__setattr__(self, "block_widths", () if len(set(widths)) == 1 else widths)

    def cutoff(self, n: int) -> float | None:
        """Return how many standard deviations above their mean the gates of block n are kept."""
        return cutoff(self.sparsity[n]) if self.sparsity[n] else None


def usual_sparsity(count: int) -> tuple[float, ...]:
    """Return the sparsity that llama.cpp takes as given."""
    return tuple(_SHARE * (n < _SPARSE) for n in range(count))


def cutoff(share: float) -> float:
    """Return the quantile of the standard normal distribution; -infinity for 0."""
    return NormalDist().inv_cdf(share) if share else -inf


def share(z: float) -> float:
    """Return the share below a quantile that is a float32: 0.95, not 0.9499999."""
    return float(f"{NormalDist().cdf(z):.6g}")


def _rows(hyper: Mapping[str, Any], stored: int) -> Any:
    """Return the row that each token reads; tokens without a row read the first."""
    if hyper.get(_ROWS, stored) != stored:
        raise ValueError(f"vocab_size_per_layer_input = {hyper[_ROWS]}")
    if hyper["vocab_size"] > _MOST_IDS:
        raise ValueError(f"vocab_size = {hyper['vocab_size']}")
    rows = np.arange(hyper["vocab_size"])
    return np.where(rows < stored, rows, 0)


class Gemma3n(Sharing):
    """The architecture."""

    config_type = Gemma3nConfig
    usual_shared = 15
    period = 5
    narrows = True
    config_says = frozenset(("blk.{n}.attn_k", "blk.{n}.attn_v", "blk.{n}.attn_k_norm"))
    table = (
        *EMBEDDING,
        replace(FOR_ALL[0], order=Order(0, _rows)),
        *FOR_ALL[1:],
        *(
            matrix(f"altup_{name}.{i}", "C C", f"model.altup_{theirs}.{i}")
            for name, theirs in (("proj", "projections"), ("unembd_proj", "unembed_projections"))
            for i in range(STREAMS - 1)
        ),
        matrix("blk.{n}.altup_router", "A C", f"{_ALTUP}.modality_router"),
        norm("blk.{n}.altup_router_norm", "C", f"{_ALTUP}.router_norm"),
        matrix("blk.{n}.altup_predict_coef", "AA A", f"{_ALTUP}.prediction_coefs"),
        *HEADS,
        matrix("blk.{n}.laurel_l", "R C", f"{_LAUREL}.linear_left"),
        matrix("blk.{n}.laurel_r", "C R", f"{_LAUREL}.linear_right"),
        norm("blk.{n}.laurel_post_norm", "C", f"{_LAUREL}.post_laurel_norm"),
        *MLP,
        norm("blk.{n}.post_ffw_norm", "C", f"{LAYER}.post_feedforward_layernorm"),
        matrix("blk.{n}.altup_correct_coef", "A A", f"{_ALTUP}.correction_coefs"),
        norm(
            "blk.{n}.altup_correct_scale.weight", "C", f"{_ALTUP}.correct_output_scale", bare=True
        ),
        *FOR_BLOCK,
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )  # fmt: skip

    def __init__(self, name: str, title: str, model_type: str) -> None:
        super().__init__(name, title)
        activation = "gelu_pytorch_tanh"
        left_out = (FREQ_BASE, WIDTH)
        self.hf = replace(
            self.hf,
            keys={
                **{key: hf for key, hf in self.hf.keys.items() if key not in left_out},
                _RANK: "laurel_rank",
                _CLIP: "altup_coef_clip",
            },
            real=self.hf.real | {_CLIP},
            fixed={
                "attention_bias": (False,),
                "hidden_activation": (activation,),
                "altup_num_inputs": (STREAMS,),
                "altup_active_idx": (0,),
                "altup_correct_scale": (True,),
            },
            optional=frozenset((_CLIP,)),
            shown={"architectures": [f"{title}ForCausalLM"], "hidden_activation": activation},
            tied=True,
            biases={},
            zero_biases=frozenset(),
            unadapted={"blk.{n}.altup_router": "gguf"}
            | {
                f"altup_{part}.{i}": "gguf"
                for part in ("proj", "unembd_proj")
                for i in range(STREAMS - 1)
            },
            model_type=model_type,
        )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        sizes = {**super().sizes(cfg, opts, n), "P": cfg.per_layer, "R": cfg.laurel_rank}
        sizes |= {"LP": cfg.n_layers * cfg.per_layer, "A": STREAMS, "AA": STREAMS**2}
        if n is None:
            return sizes
        has = not cfg.shares(n)
        return sizes | {"F": (cfg.block_widths or {n: cfg.d_ff})[n], "has_k": has, "has_v": has}

    # -- Files ---------------------------------------------------------------------------------

    def shape(self, hyper: Hyper) -> tuple[dict[str, Any], int]:
        """Return the model's sizes in a file, and the width of its heads."""
        widths = hyper.counts(WIDTH, hyper.layers)
        shape, d_head = shape_of(hyper, "blk.0.attn_q.weight", d_ff=max(widths))
        return shape | {"block_widths": tuple(widths)}, d_head

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        hyper.expect(_ACTIVE, 0)
        hyper.expect(_STREAMS, STREAMS)
        rank = hyper.rows("blk.0.laurel_l.weight")
        hyper.expect(_RANK, rank)
        hyper.count(_ROWS)  # see _rows
        if hyper.has(_CLIP):
            _check_clip(hyper, cfg.n_layers)
        cuts = hyper.reals(_SPARSITY, cfg.n_layers)
        fields: dict[str, Any] = {
            "rope_base": hyper.real(FREQ_BASE, 1e6),
            "local_base": hyper.real(LOCAL_FREQ_BASE, 1e4),
            "shared_kv": hyper.count(SHARED, max(cfg.n_layers - _WITH_KV, 0)),
            "per_layer": hyper.whole(INPUT),
            "logit_cap": hyper.real(LOGITS, 30.0),
            "laurel_rank": rank,
            "sparsity": tuple(share(z) for z in cuts),
        }
        return replace(cfg, **fields)

    def check_gguf(self, cfg: Any) -> None:
        """Refuse values that differ from what llama.cpp assumes. Raises ConfigError."""
        super().check_gguf(cfg)
        fixed = _GIVEN | {
            "shared_kv": max(cfg.n_layers - _WITH_KV, 0),
            "block_widths": (),
            "sparsity": usual_sparsity(cfg.n_layers),
        }
        for name, value in fixed.items():
            if (got := getattr(cfg, name)) != value:
                raise ConfigError(
                    f"export: llama.cpp reads gemma3n of {cfg.n_layers} blocks with {name} "
                    f"{value}; got {got}"
                )

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        sparse = ["divides by n - 1, not n, in the standard deviation of sparse gates"]
        return super().unlike(cfg) + (sparse if any(cfg.sparsity) else [])

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {
            WIDTH: list(cfg.block_widths) or cfg.d_ff,
            LOCAL_FREQ_BASE: float(cfg.local_base),
            SHARED: cfg.shared_kv,
            INPUT: cfg.per_layer,
            LOGITS: float(cfg.logit_cap),
            _ACTIVE: 0,
            _STREAMS: STREAMS,
            _SPARSITY: [cutoff(share) for share in cfg.sparsity],
        }

    def beside(self, cfg: Any) -> dict[str, Floats]:
        """Return k and v for blocks that share those of others: llama.cpp requires unused ones."""
        return _unread(cfg.n_layers, cfg.shared_kv, cfg.n_kv_heads, cfg.d_head, cfg.d_model)

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read kinds of blocks, their widths and sparsity, and RoPE."""
        self.read_kinds(config, hyper)
        self.read_counts(config, hyper)
        count = len(hyper[PATTERN])
        widths = config.get("intermediate_size")
        each = widths if isinstance(widths, list) else [widths]
        if len(each) not in (1, count):
            config.refuse(f"intermediate_size must have {count} entries; got {len(each)}")
        each = [int(config.number("intermediate_size", width, real=False)) for width in each]
        hyper[WIDTH] = each[0] if len(set(each)) == 1 else each
        usual = [_SHARE * (n < _SPARSE < count) for n in range(count)]
        pattern = config.get("activation_sparsity_pattern")
        pattern = usual if pattern is None else pattern
        if not isinstance(pattern, list) or len(pattern) != count:
            config.refuse(f"activation_sparsity_pattern must have {count} entries; got {pattern!r}")
        if not all(type(part) in (int, float) and 0 <= part < 1 for part in pattern):
            config.refuse(
                f"activation_sparsity_pattern must be numbers from 0 to less than 1; got {pattern}"
            )
        hyper[_SPARSITY] = [cutoff(part) for part in pattern]
        hyper[LOGITS] = config.real(LOGITS, 30.0)
        hyper[_ROWS] = config.whole("vocab_size_per_layer_input", 262144)
        bases_of(config, hyper)
        if FACTOR in hyper:
            config.refuse("RoPE of full_attention must be default; got linear")
        sizes = (KV, KEY, "embedding_length")
        if any(key not in hyper for key in sizes):
            return {}  # which is refused
        return _unread(count, hyper[SHARED], *(hyper[key] for key in sizes))

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return widths and sparsity of blocks, RoPE, and the streams."""
        keys = super().folder(hyper, tensors)
        keys |= {
            "intermediate_size": hyper[WIDTH],
            "activation_sparsity_pattern": [share(z) for z in hyper[_SPARSITY]],
            "laurel_rank": len(tensors["blk.0.laurel_l.weight"]),
            "altup_num_inputs": STREAMS,
            "altup_active_idx": 0,
            "altup_correct_scale": True,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": hyper[base]}
                for kind, base in zip(KINDS, (FREQ_BASE, LOCAL_FREQ_BASE), strict=True)
            },
        }
        return keys

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies, and gains of 1."""
        return super().constants(cfg) | {_ONES: np.ones(cfg.d_model, np.float32)}

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings, the streams and the blocks."""
        C = cfg.d_model
        x = layers.scale(self.embed(layers, cfg, tokens), sqrt(C))
        inputs = self.inputs(layers, cfg, tokens, x)
        streams = x
        for i in range(STREAMS - 1):
            stream = layers.rescale(layers.linear(x, f"altup_proj.{i}"), x)
            streams = layers.beside(streams, stream)
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            streams = self._block(block, cfg, n, streams, positions, inputs, kept)
        first = total = layers.columns(streams, 0, C)
        for i in range(STREAMS - 1):
            stream = layers.columns(streams, (i + 1) * C, C)
            stream = layers.rescale(layers.linear(stream, f"altup_unembd_proj.{i}"), first)
            total = layers.add(total, stream)
        return layers.scale(total, 1 / STREAMS)

    def _block(
        self,
        block: Layers,
        cfg: Any,
        n: int,
        streams: Tensor,
        positions: Tensor,
        inputs: Tensor,
        kept: dict[int, tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Record the streams (B T, A C) behind block n; in the last block, of wanted rows."""
        C, eps = cfg.d_model, cfg.norm_eps
        seen = self._seen(block, cfg, block.columns(streams, 0, C))
        streams = block.predict(streams, block.linear(seen, "altup_predict_coef"), STREAMS)
        x = block.columns(streams, 0, C)
        normed = block.rmsnorm(x, "attn_norm", eps)
        heads = self.heads(block, cfg, n, normed, positions, kept)
        normed, streams = block.narrowed(normed), block.narrowed(streams)
        low = block.linear(block.linear(normed, "laurel_l"), "laurel_r")
        low = block.add(normed, block.rmsnorm(low, "laurel_post_norm", eps))
        x = block.residual(x, block.rmsnorm(heads, "post_attention_norm", eps))
        x = block.scale(block.add(x, low), 0.5**0.5)
        wide = block.rmsnorm(x, "ffn_norm", eps)
        wide = block.geglu(wide, "ffn_gate", "ffn_up", "ffn_down", cfg.cutoff(n))
        x = block.add(x, block.rmsnorm(wide, "post_ffw_norm", eps))
        w = block.linear(self._seen(block, cfg, x), "altup_correct_coef")
        first = block.correct(block.columns(streams, 0, C), x, block.columns(w, 0, 1))
        first = block.weighed(first, "altup_correct_scale.weight", _ONES)
        return block.correct(streams, x, w, self.added(block, cfg, n, first, inputs))

    def _seen(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the router's numbers (N, A) of x (N, C)."""
        normed = block.rmsnorm(x, "altup_router_norm", cfg.norm_eps)
        return block.softcap(block.linear(block.scale(normed, 1 / cfg.d_model), "altup_router"), 1)


def _check_clip(hyper: Hyper, count: int) -> None:
    """Refuse a folder with coefficients that transformers would clamp in training."""
    most = hyper.real(_CLIP)
    names = (f"blk.{n}.altup_{part}_coef" for n in range(count) for part in ("predict", "correct"))
    for name in (f"{name}.weight" for name in names):
        if name not in hyper.tensors:
            continue
        if not (largest := np.abs(hyper.file[name]).max(initial=0)) <= most:  # NaN, too
            refuse(
                hyper.file,
                f"{name} must be at most {most:g}, altup_coef_clip of config.json: toynn does not "
                f"clamp it in training; got {largest:g}",
            )


def _unread(
    count: int, shared: int, n_kv_heads: int, d_head: int, d_model: int
) -> dict[str, Floats]:
    """Return zeros for the k and v of the last ``shared`` of ``count`` blocks; they take no memory.

    None for sizes that no model has; the check of other tensors' shapes refuses them.
    """
    rows = n_kv_heads * d_head
    if rows * d_model > _MOST:
        return {}
    shapes = {"attn_k": (rows, d_model), "attn_v": (rows, d_model), "attn_k_norm": (d_head,)}
    return {
        f"blk.{n}.{part}.weight": np.broadcast_to(np.float32(0), shape)
        for n in range(max(count - shared, 0), count)
        for part, shape in shapes.items()
    }


register(Gemma3n("gemma3n", "Gemma3n", "gemma3n_text"))
