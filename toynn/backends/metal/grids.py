"""How many threads each kernel of the device is given, and in how many passes it runs."""

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from toynn._kernels.signature import Signature
from toynn.numerics import precision
from toynn.numerics.dtypes import GGUF_TYPES

__all__ = ["PASSES", "SCRATCH", "TYPES", "Pass", "Sizes", "passes_of"]

# The shaders have the same numbers, by the same names.
GROUP = 256  # threads of a group
LINE = 32  # columns that a group adds up; rows of attention
RUN = 16  # elements of a row that a thread dequantizes
BLOCK = 16384  # squares that a group adds up
TILE, PRODUCT, GEMV_ROWS = (
    64,
    128,
    4,
)  # products: results of a group, its threads; rows of a GEMV, at most
GEMV_COPIES = 16  # of rows, sent to experts: from here on in tiles
KEYS, CROWD = 1024, 128  # of a cache: keys of a span; groups from which on there is one span
WIDE = 128  # attention: columns of a head that a group adds up
MEDIUM = precision.PRECISIONS.index("medium")


class Pass(NamedTuple):
    """One dispatch: a function of the op's file, and the extents of its grid."""

    function: str
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]


#: Sizes of a launch, and has_X of each of its tensors that may be missing.
Sizes = Mapping[str, int]


def rows(function: str, n: int) -> Pass:
    """Give a group to each of n rows."""
    return Pass(function, (n, 1, 1), (GROUP, 1, 1))


def each(function: str, n: int) -> Pass:
    """Give a thread to each of n elements."""
    return Pass(function, (_over(n, GROUP), 1, 1), (GROUP, 1, 1))


def columns(function: str, n: int) -> Pass:
    """Give a group to each LINE of n columns, that it adds up."""
    return Pass(function, (_over(n, LINE), 1, 1), (GROUP, 1, 1))


def _over(n: int, by: int) -> int:
    return -(-n // by)


def _all(*names: str) -> Callable[[Sizes], int]:
    """Return what counts the elements of a tensor of these extents."""

    def count(s: Sizes) -> int:
        n = 1
        for name in names:
            n *= s[name]
        return n

    return count


def _each(function: str, *names: str) -> Callable[[Sizes], list[Pass]]:
    count = _all(*names)
    return lambda s: [each(function, count(s))]


def _rows(function: str) -> Callable[[Sizes], list[Pass]]:
    return lambda s: [rows(function, s["N"])]


def _norm_backward(op: str) -> Callable[[Sizes], list[Pass]]:
    def passes(s: Sizes) -> list[Pass]:
        weights = columns(f"{op}_backward_w", s["C"])
        wanted = s["has_dw"] or s.get("has_db", 0)
        return [rows(f"{op}_backward_x", s["N"])] + [weights] * bool(wanted)

    return passes


def _one_loss(form: str) -> Callable[[Sizes], list[Pass]]:
    function = f"cross_entropy_forward{form}"
    return lambda s: [rows(f"{function}_rows", s["N"]), rows(function, 1)]


def _lines(function: str, n: int, m: int = 1) -> Pass:
    """Give a line of threads to each of n outputs, of each of m rows."""
    return Pass(function, (_over(n, GROUP // LINE), m, 1), (GROUP, 1, 1))


def _tiles(function: str, s: Sizes, down: str, across: str, deep: int = 1) -> Pass:
    """Give a group to each TILE x TILE results of a product."""
    return Pass(function, (_over(s[across], TILE), _over(s[down], TILE), deep), (PRODUCT, 1, 1))


def _rough(s: Sizes) -> str:
    """Return the end of the name of the function that a product takes in its precision."""
    return "_rough" * (s["precision"] == MEDIUM)


def _product(entry: str, down: str, across: str) -> Callable[[Sizes], list[Pass]]:
    def passes(s: Sizes) -> list[Pass]:
        if entry == "forward" and s["M"] <= GEMV_ROWS:
            return [_lines("matmul_forward_gemv", s["N"], min(1, s["M"]))]
        return [_tiles(f"matmul_{entry}{_rough(s)}", s, down, across)]

    return passes


def _pairs(function: str) -> Callable[[Sizes], list[Pass]]:
    return lambda s: [each(function, s["N"] * _over(s["D"], 2))]


def _heads(function: str, s: Sizes, n: int, heads: str) -> Pass:
    """Give a group to each LINE of n rows of each head, and to each WIDE of its columns."""
    groups = (_over(n, LINE), s["B"] * s[heads], _over(s["D"], WIDE))
    return Pass(function, groups, (GROUP, 1, 1))


def _attention_backward(s: Sizes) -> list[Pass]:
    delta = rows("attention_backward_delta", _over(s["B"] * s["H"] * s["T"], GROUP // LINE))
    queries = _heads("attention_backward_q", s, s["T"], "H")
    keys = _heads("attention_backward_kv", s, s["T"], "KV")
    wanted = [(delta, s["has_delta"]), (queries, s["has_dq"])]
    wanted.append((keys, max(s["has_dk"], s["has_dv"])))
    return [one for one, there in wanted if there]


def _spans(s: Sizes) -> int:
    """Return in how many spans a cache is read: one, where rows and heads alone are enough work."""
    return 1 if s["B"] * s["T"] * s["H"] > CROWD else _over(s["S"], KEYS)


def _cached(s: Sizes) -> list[Pass]:
    across, numbers = _over(s["D"], WIDE), s["B"] * s["T"] * s["D"]
    store = each("cached_attention_forward_store", numbers * s["KV"])
    if _spans(s) == 1:
        groups = (s["T"], s["B"] * s["H"], across)
        return [store, Pass("cached_attention_forward", groups, (GROUP, 1, 1))]
    groups = (_spans(s), s["B"] * s["T"] * s["H"], across)
    return [
        store,
        Pass("cached_attention_forward_spans", groups, (GROUP, 1, 1)),
        each("cached_attention_forward_merge", numbers * s["H"]),
    ]


#: The passes, in order, of each entry that is not a thread for each number that it writes.
PASSES: dict[str, Callable[[Sizes], list[Pass]]] = {
    "attention.backward": _attention_backward,
    "attention.backward_sinks": lambda s: [rows("attention_backward_sinks", s["H"])],
    "attention.forward": lambda s: [_heads("attention_forward", s, s["T"], "H")],
    "cached_attention.forward": _cached,
    "chunked_cross_entropy.backward": _rows("chunked_cross_entropy_backward"),
    "chunked_cross_entropy.count": lambda s: [rows("chunked_cross_entropy_count", 1)],
    "chunked_cross_entropy.each": _rows("chunked_cross_entropy_each"),
    "chunked_cross_entropy.forward": _rows("chunked_cross_entropy_forward"),
    "chunked_cross_entropy.mean": lambda s: [rows("chunked_cross_entropy_mean", 1)],
    "class_token.backward": lambda s: [
        each("class_token_backward_x", s["B"] * (s["T"] - 1) * s["C"]),
        each("class_token_backward_w", s["T"] * s["C"] * max(s["has_dcls"], s["has_dpos"])),
    ],
    "valid_rows.forward": lambda s: [rows("valid_rows_forward", 1)],
    "cross_entropy.backward": _rows("cross_entropy_backward"),
    "cross_entropy.backward_dense": _rows("cross_entropy_backward_dense"),
    "cross_entropy.forward": _one_loss(""),
    "cross_entropy.forward_dense": _one_loss("_dense"),
    "decay.backward": lambda s: [
        each("decay_backward_x", s["N"] * s["V"]),
        each("decay_backward_w", s["V"] * max(s["has_dw"], s["has_db"])),
    ],
    "delta.backward": lambda s: [rows("delta_backward", s["B"] * s["K"])],
    "delta.cached": _each("delta_cached", "B", "V", "E"),
    "delta.forward": _each("delta_forward", "B", "V", "E"),
    "dispatch.weigh_backward": lambda s: [rows("dispatch_weigh_backward", s["N"] * s["K"])],
    "dora.backward": lambda s: [
        each("dora_backward_x", s["N"] * s["C"]),
        *[columns("dora_backward_m", s["C"])] * bool(s["has_dm"]),
    ],
    "dpo.backward": _each("dpo_backward", "S"),
    "dpo.forward": lambda s: [rows("dpo_forward", 1)],
    "dropout.forward": lambda s: [each("dropout_forward", _over(s["n"], 32) * 16)],
    "elementwise.bias_backward": lambda s: [columns("elementwise_bias_backward", s["C"])],
    "embedding.backward": lambda s: [
        each("embedding_backward_clear", s["V"] * s["C"]),
        rows("embedding_backward", s["N"]),
    ],
    "embedding.forward": lambda s: [each("embedding_forward", s["N"] * _over(s["C"], RUN))],
    "expert_rows.forward": lambda s: [each("expert_rows_forward", s["E"] + 1)],
    "experts.backward_input": lambda s: [_tiles(f"experts_backward_input{_rough(s)}", s, "M", "K")],
    "experts.backward_weight": lambda s: [
        _tiles(f"experts_backward_weight{_rough(s)}", s, "N", "K", s["E"])
    ],
    "experts.forward": lambda s: [
        _lines("experts_forward_gemv", s["N"], s["M"])
        if s["M"] <= GEMV_COPIES
        else _tiles(f"experts_forward{_rough(s)}", s, "M", "N")
    ],
    "gated.queries_backward": _each("gated_queries_backward", "N", "H", "D"),
    "grad_norm.forward": lambda s: [
        rows("grad_norm_forward_blocks", _over(s["n"], BLOCK)),
        rows("grad_norm_forward", 1),
    ],
    "kto.backward": _each("kto_backward", "S"),
    "kto.forward": lambda s: [rows("kto_forward", 1)],
    "layernorm.backward": _norm_backward("layernorm"),
    "layernorm.forward": _rows("layernorm_forward"),
    "matmul.backward_input": _product("backward_input", "M", "K"),
    "matmul.backward_weight": _product("backward_weight", "N", "K"),
    "matmul.forward": _product("forward", "M", "N"),
    "orpo.backward": _each("orpo_backward", "S"),
    "orpo.forward": lambda s: [rows("orpo_forward", 1)],
    "rmsnorm.backward": _norm_backward("rmsnorm"),
    "rmsnorm.forward": _rows("rmsnorm_forward"),
    "rope.backward": _pairs("rope_backward"),
    "rope.forward": _pairs("rope_forward"),
    "routing.backward": _each("routing_backward", "N"),
    "routing.forward": _each("routing_forward", "N"),
    "shortconv.backward": lambda s: [
        each("shortconv_backward_x", s["B"] * s["T"] * s["C"]),
        each("shortconv_backward_w", s["C"] * s["L"] * s["has_dw"]),
    ],
    "shortconv.cached": _each("shortconv_cached", "B", "C"),
    "softmax.backward": _rows("softmax_backward"),
    "softmax.forward": _rows("softmax_forward"),
    "swiglu.halves_backward": _each("swiglu_halves_backward", "N", "F"),
    "token_sums.forward": lambda s: [rows("token_sums_forward", 2 * s["S"])],
}


def passes_of(kernel: str, signature: Signature, sizes: Sizes) -> list[Pass]:
    """Return the passes of an entry in order; a thread for each element of its first output."""
    if kernel in PASSES:
        return PASSES[kernel](sizes)
    return [each(kernel.replace(".", "_"), prod(signature.specs[0].shape(sizes)))]


#: Bytes of memory that a launch needs of its own until its last pass is done.
SCRATCH: dict[str, Callable[[Sizes], int]] = {
    "cached_attention.forward": lambda s: (
        4 * s["B"] * s["T"] * s["H"] * _spans(s) * (s["D"] + 2) * (_spans(s) > 1)
    ),
    "cross_entropy.forward": lambda s: 4 * s["N"],
    "cross_entropy.forward_dense": lambda s: 8 * s["N"],
    "delta.backward": lambda s: 4 * s["B"] * s["K"] * s["E"] * ((s["L"] + 2) * s["D"] + 2),
    "delta.forward": lambda s: 4 * s["B"] * s["V"] * s["D"] * s["E"],
    "grad_norm.forward": lambda s: 4 * _over(s["n"], BLOCK),
}

#: The types of matrices that quantized.metal reads, by their numbers in GGUF: all that toynn knows.
TYPES = frozenset(GGUF_TYPES.values())
