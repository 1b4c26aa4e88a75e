"""The grid of each kernel on the device: threads and dispatches."""

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from toynn._kernels.base.signature import Signature
from toynn.numerics import precision
from toynn.numerics.dtypes import GGUF_TYPES

# The shaders have the same constants, by the same names.
GROUP = 256  # threads of a group
LINE = 32  # threads of a line; columns that a group adds up; rows of attention
RUN = 16  # elements of a row that a thread dequantizes
BLOCK = 16384  # squares that a group adds up
TILE, PRODUCT = 64, 128  # a group of PRODUCT threads computes TILE x TILE results of a product
GEMV_ROWS = 4  # most rows of x for a GEMV
GEMV_COPIES = 16  # most rows sent to experts for a GEMV; more are computed in tiles
KEYS, CROWD = 1024, 128  # a cache: keys of a span; with more groups than CROWD there is one span
CHUNK = 64  # rows of a state space from one stored state to the next
WIDE = 128  # attention: columns of a head that a group adds up
MEDIUM = precision.PRECISIONS.index("medium")


class Dispatch(NamedTuple):
    """One dispatch: a function of the op's file, and the extents of its grid."""

    function: str  # in DISPATCHES: the suffix of its name, after op and entry
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]


#: Sizes of a launch, and has_X for each tensor X that may be missing.
Sizes = Mapping[str, int]
Dispatches = Callable[[Sizes], list[Dispatch]]


def rows(n: int, suffix: str = "") -> Dispatch:
    """Give a group to each of n rows."""
    return Dispatch(suffix, (n, 1, 1), (GROUP, 1, 1))


def each(n: int, suffix: str = "") -> Dispatch:
    """Give a thread to each of n elements."""
    return Dispatch(suffix, (_over(n, GROUP), 1, 1), (GROUP, 1, 1))


def columns(n: int, suffix: str = "") -> Dispatch:
    """Give a group to each LINE of n columns, which it adds up."""
    return Dispatch(suffix, (_over(n, LINE), 1, 1), (GROUP, 1, 1))


def _over(n: int, by: int) -> int:
    return -(-n // by)


def _each(*names: str) -> Dispatches:
    """Give a thread to each element of a tensor with these extents."""
    return lambda s: [each(prod(s[name] for name in names))]


def _rows(s: Sizes) -> list[Dispatch]:
    return [rows(s["N"])]


def _one_group(s: Sizes) -> list[Dispatch]:
    return [rows(1)]


def _norm_backward(s: Sizes) -> list[Dispatch]:
    wanted = bool(s["has_dw"] or s.get("has_db"))
    return [rows(s["N"], "_x"), columns(s["C"] * wanted, "_w")]


def _one_loss(s: Sizes) -> list[Dispatch]:
    return [rows(s["N"], "_rows"), rows(1)]


def _lines(n: int, m: int = 1, suffix: str = "") -> Dispatch:
    """Give a line of threads to each of n outputs of each of m rows."""
    return Dispatch(suffix, (_over(n, GROUP // LINE), m, 1), (GROUP, 1, 1))


def _tiles(s: Sizes, down: str, across: str, deep: int = 1) -> list[Dispatch]:
    """Give a group to each TILE x TILE results of a product, in its precision."""
    suffix = "_rough" * (s["precision"] == MEDIUM)
    return [Dispatch(suffix, (_over(s[across], TILE), _over(s[down], TILE), deep), (PRODUCT, 1, 1))]


def _product(s: Sizes) -> list[Dispatch]:
    if s["M"] <= GEMV_ROWS:
        return [_lines(s["N"], min(1, s["M"]), "_gemv")]
    return _tiles(s, "M", "N")


def _products_of_experts(s: Sizes) -> list[Dispatch]:
    if s["M"] <= GEMV_COPIES:
        return [_lines(s["N"], s["M"], "_gemv")]
    return _tiles(s, "M", "N")


def _pairs(s: Sizes) -> list[Dispatch]:
    return [each(s["N"] * _over(s["D"], 2))]


def _heads(s: Sizes, heads: str, columns: int, suffix: str = "") -> Dispatch:
    """Give a group to each LINE of T rows of each head, and to each WIDE of its columns."""
    groups = (_over(s["T"], LINE), s["B"] * s[heads], _over(columns, WIDE))
    return Dispatch(suffix, groups, (GROUP, 1, 1))


def _attention_backward(s: Sizes) -> list[Dispatch]:
    delta = rows(_over(s["B"] * s["H"] * s["T"], GROUP // LINE), "_delta")
    queries, keys = _heads(s, "H", s["D"], "_q"), _heads(s, "KV", max(s["D"], s["E"]), "_kv")
    wanted = [(delta, s["has_delta"]), (queries, s["has_dq"])]
    wanted.append((keys, max(s["has_dk"], s["has_dv"])))
    return [one for one, there in wanted if there]


def _spans(s: Sizes) -> int:
    """Return in how many spans a cache is read: one if rows and heads make enough groups."""
    return 1 if s["B"] * s["T"] * s["H"] > CROWD else _over(s["S"], KEYS)


def _cached(s: Sizes) -> list[Dispatch]:
    across, count = _over(s["E"], WIDE), s["B"] * s["T"]
    store = each(count * s["KV"] * max(s["D"], s["E"]), "_store")
    if _spans(s) == 1:
        groups = (s["T"], s["B"] * s["H"], across)
        return [store, Dispatch("", groups, (GROUP, 1, 1))]
    groups = (_spans(s), s["B"] * s["T"] * s["H"], across)
    return [
        store,
        Dispatch("_spans", groups, (GROUP, 1, 1)),
        each(count * s["H"] * s["E"], "_merge"),
    ]


#: The dispatches of an entry, in order. An entry that is not listed has a thread per element of its
#: first output.
DISPATCHES: dict[str, Dispatches] = {
    "altup.correct_backward": lambda s: [
        each(s["N"] * s["C"], "_x"),
        rows(_over(s["N"] * s["A"], GROUP // LINE), "_w"),
    ],
    "altup.predict_backward": lambda s: [
        each(s["N"] * s["A"] * s["C"], "_x"),
        rows(_over(s["N"] * s["A"] * s["A"], GROUP // LINE), "_w"),
    ],
    "altup.rescale": _rows,
    "altup.rescale_backward": _rows,
    "attention.backward": _attention_backward,
    "attention.backward_sinks": lambda s: [rows(s["H"])],
    "attention.forward": lambda s: [_heads(s, "H", s["E"])],
    "cached_attention.forward": _cached,
    "chunked_cross_entropy.backward": _rows,
    "chunked_cross_entropy.count": _one_group,
    "chunked_cross_entropy.each": _rows,
    "chunked_cross_entropy.forward": _rows,
    "chunked_cross_entropy.mean": _one_group,
    "class_token.backward": lambda s: [
        each(s["B"] * (s["T"] - 1) * s["C"], "_x"),
        each(s["T"] * s["C"] * max(s["has_dcls"], s["has_dpos"]), "_w"),
    ],
    "cross_entropy.backward": _rows,
    "cross_entropy.backward_dense": _rows,
    "cross_entropy.forward": _one_loss,
    "cross_entropy.forward_dense": _one_loss,
    "decay.backward": lambda s: [
        each(s["N"] * s["V"], "_x"),
        each(s["V"] * max(s["has_dw"], s["has_db"]), "_w"),
    ],
    "delta.backward": lambda s: [rows(s["B"] * s["K"])],
    "delta.cached": _each("B", "V", "E"),
    "delta.forward": _each("B", "V", "E"),
    "dispatch.weigh_backward": lambda s: [rows(s["N"] * s["K"])],
    "distillation.backward": _rows,
    "distillation.forward": _rows,
    "dora.backward": lambda s: [each(s["N"] * s["C"], "_x"), columns(s["C"] * s["has_dm"], "_m")],
    "dpo.backward": _each("S"),
    "dpo.forward": _one_group,
    "dropout.forward": lambda s: [each(_over(s["n"], 32) * 16)],
    "elementwise.bias_backward": lambda s: [columns(s["C"])],
    "embedding.backward": lambda s: [each(s["V"] * s["C"], "_clear"), rows(s["N"])],
    "embedding.forward": lambda s: [each(s["N"] * _over(s["C"], RUN))],
    "expert_rows.forward": lambda s: [each(s["E"] + 1)],
    "experts.backward_input": lambda s: _tiles(s, "M", "K"),
    "experts.backward_weight": lambda s: _tiles(s, "N", "K", s["E"]),
    "experts.forward": _products_of_experts,
    "latent.absorb": lambda s: [each(s["N"] * s["H"] * _over(s["C"], RUN))],
    "latent.expand": lambda s: [rows(_over(s["N"] * s["H"] * s["D"], GROUP // LINE))],
    "latent.join_backward": lambda s: [
        each(s["N"] * max(s["H"] * s["P"], s["G"] * s["R"])),
    ],
    "gated.queries_backward": _each("N", "H", "D"),
    "gatednorm.backward": lambda s: [
        rows(s["N"] * s["G"], "_x"),
        columns(s["G"] * s["C"] * s["has_dw"], "_w"),
    ],
    "gatednorm.forward": lambda s: [rows(s["N"] * s["G"])],
    "gaussian_topk.backward": _rows,
    "gaussian_topk.forward": _rows,
    "grad_norm.forward": lambda s: [rows(_over(s["n"], BLOCK), "_blocks"), rows(1)],
    "kto.backward": _each("S"),
    "kto.forward": _one_group,
    "layernorm.backward": _norm_backward,
    "layernorm.forward": _rows,
    "matmul.backward_input": lambda s: _tiles(s, "M", "K"),
    "matmul.backward_weight": lambda s: _tiles(s, "N", "K"),
    "matmul.forward": _product,
    "orpo.backward": _each("S"),
    "orpo.forward": _one_group,
    "rmsnorm.backward": _norm_backward,
    "rmsnorm.forward": _rows,
    "rope.backward": _pairs,
    "rope.forward": _pairs,
    "routing.backward": lambda s: [each(s["N"], "_p"), each(s["E"] * s["has_df"], "_f")],
    "routing.forward": _each("N"),
    "shortconv.backward": lambda s: [
        each(s["B"] * s["T"] * s["C"], "_x"),
        each(s["C"] * s["L"] * s["has_dw"], "_w"),
        each(s["C"] * s["has_db"], "_b"),
    ],
    "shortconv.cached": _each("B", "C"),
    "softmax.backward": _rows,
    "softmax.forward": _rows,
    "ssd.backward": lambda s: [
        each(s["B"] * s["V"] * s["E"], "_states"),
        rows(s["B"] * s["G"]),
        each(s["V"] * max(s["has_da"], s["has_dbias"], s["has_dskip"]), "_sums"),
    ],
    "ssd.cached": _each("B", "V", "E"),
    "ssd.forward": _each("B", "V", "E"),
    "sums.forward": lambda s: [rows(s["A"] * s["B"])],
    "swiglu.halves_backward": _each("N", "F"),
    "pooling.backward": _each("N", "C"),
    "pooling.forward": _each("S", "C"),
    "token_sums.forward": lambda s: [rows(2 * s["S"])],
    "valid_rows.forward": _one_group,
}


def dispatches_of(kernel: str, signature: Signature, sizes: Sizes) -> list[Dispatch]:
    """Return an entry's dispatches in order; by default a thread per element of its first output.

    A dispatch without groups is left out: its outputs are empty or not wanted.
    """
    if kernel in DISPATCHES:
        dispatches = DISPATCHES[kernel](sizes)
    else:
        dispatches = [each(prod(signature.specs[0].shape(sizes)))]
    function = kernel.replace(".", "_")
    return [p._replace(function=function + p.function) for p in dispatches if 0 not in p.groups]


#: Bytes of scratch memory that a launch needs until its last dispatch is done.
SCRATCH: dict[str, Callable[[Sizes], int]] = {
    "cached_attention.forward": lambda s: (
        4 * s["B"] * s["T"] * s["H"] * _spans(s) * (s["E"] + 2) * (_spans(s) > 1)
    ),
    "cross_entropy.forward": lambda s: 4 * s["N"],
    "cross_entropy.forward_dense": lambda s: 8 * s["N"],
    "delta.backward": lambda s: 4 * s["B"] * s["K"] * s["E"] * ((s["L"] + 2) * s["D"] + 2),
    "delta.forward": lambda s: 4 * s["B"] * s["V"] * s["D"] * s["E"],
    "grad_norm.forward": lambda s: 4 * _over(s["n"], BLOCK),
    "ssd.backward": lambda s: (
        4 * s["B"] * s["V"] * (_over(s["T"], CHUNK) * s["D"] * s["E"] + 2 * s["T"])
        + 4 * s["B"] * s["G"] * (CHUNK + 2) * s["D"] * s["E"]
    ),
    "ssd.forward": lambda s: 4 * s["B"] * s["V"] * s["D"] * s["E"],
}

#: The GGUF numbers of the types that quantized.metal reads: all that toynn knows.
TYPES = frozenset(GGUF_TYPES.values())
