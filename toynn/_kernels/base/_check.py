"""The shape checks of the kernels' Python calls."""

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

from numpy.typing import NDArray

from toynn._kernels.base.pool import MAX_THREADS
from toynn.numerics.checks import segments_within

Arrays = Mapping[str, NDArray[Any]]
Sizes = Mapping[str, int]
Options = Mapping[str, float]

MOST = 2**56  # elements of an array: its bytes, packed or not, can be counted in 64 bits
PANEL = 64  # packing may round an axis up to a multiple of this


def _shown(shapes: dict[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())


def check(where: str, given: str, n_threads: int, /, **arrays: tuple[Any, Sequence[int]]) -> None:
    """Raise ValueError unless each array has the shape that ``given`` asks for.

    ``check("rmsnorm.forward", "x (2, 3)", 1, y=(y, (2, 3)), w=(w, (3,)))`` says, when it fails,
    what was needed and what came: ``rmsnorm.forward: x (2, 3) needs y (2, 3), w (3,); got ...``.
    """
    if not 1 <= n_threads <= MAX_THREADS:
        raise ValueError(f"{where}: n_threads must be 1 to {MAX_THREADS}; got {n_threads}")
    needed = {name: shape for name, (_, shape) in arrays.items()}
    got = {name: array.shape for name, (array, _) in arrays.items()}
    if any(tuple(got[name]) != tuple(needed[name]) for name in arrays):
        raise ValueError(f"{where}: {given} needs {_shown(needed)}; got {_shown(got)}")


def countable(where: str, name: str, shape: Sequence[int]) -> None:
    """Raise ValueError for an array whose bytes cannot be counted, or with an axis below 0."""
    if any(n < 0 for n in shape) or prod(n + PANEL for n in shape) > MOST:
        raise ValueError(
            f"{where}: {name} needs sizes from 0 on and at most 2^56 elements; got {tuple(shape)}"
        )


def check_limits(where: str, window: int, cap: float) -> None:
    """Raise ValueError for an impossible window or cap of attention; 0 means none."""
    if window < 0:
        raise ValueError(
            f"{where}: window must be the keys that a row sees, 0 for all; got {window}"
        )
    if not 0 <= cap < inf:
        raise ValueError(f"{where}: cap must be a number above 0, or 0 for none; got {cap}")


def sequences(where: str, arrays: Arrays, sizes: Sizes, options: Options, of: int = 1) -> None:
    """Raise ValueError unless ``count`` is 1 to S sequences and a multiple of ``of``."""
    count, most = int(arrays["count"][0]), sizes["S"]
    if not of <= count <= most or count % of:
        what = f"a multiple of {of}, " if of > 1 else ""
        raise ValueError(f"{where}: count needs {what}{of} to {most}; got {count}")


def pairs(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless ``count`` is an even number of sequences."""
    sequences(where, arrays, sizes, options, of=2)


def completions(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless sequences come in pairs, and each completion has tokens."""
    pairs(where, arrays, sizes, options)
    for s in range(int(arrays["count"][0])):
        prompt, completion, end = arrays["bounds"][2 * s : 2 * s + 3]
        if prompt > completion or completion >= end:
            raise ValueError(f"{where}: bounds must rise, in the completion of sequence {s} too")


def bounds_rise(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless ``bounds`` rise from at least 0 to at most N."""
    before, most = 0, sizes["N"]
    for k, bound in enumerate(arrays["bounds"].tolist()):
        if not before <= bound <= most:
            raise ValueError(f"{where}: bounds[{k}] must be {before} to {most}; got {bound}")
        before = bound


def example_starts(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless ``first`` holds where each row's example starts."""
    if sizes.get("L", 1) < 1 or sizes["B"] < 0:
        raise ValueError(f"{where}: needs a tap and a sequence or more; got sizes {dict(sizes)}")
    if "first" in arrays:
        segments_within(sizes["T"])(f"{where}: first", arrays["first"])


def ring_has_room(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless a ring has room for T rows and the L - 1 rows before them."""
    T, L, R = (sizes[name] for name in "TLR")
    if (arrays["past"] < 0).any() or (len(arrays["past"]) and T + L - 1 > R) or L < 1:
        raise ValueError(
            f"{where}: {T} rows and {L} taps need a ring of {T + L - 1} rows, and a past >= 0; "
            f"got {R} and {arrays['past'].tolist()}"
        )


def attention_fits(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError for impossible heads, segments, window or cap of attention."""
    H, KV, D, E = (sizes[name] for name in ("H", "KV", "D", "E"))
    if D < 1 or E < 1 or KV < 1 or H % KV:
        raise ValueError(
            f"{where}: needs D >= 1, E >= 1 and KV that divides H; got {D}, {E}, {KV}, {H} from q "
            f"{arrays['q'].shape}, k {arrays['k'].shape}"
        )
    check_limits(where, sizes["window"], options["cap"])
    if "first" in arrays:
        segments_within(sizes["T"])(f"{where}: first", arrays["first"])
    if "delta" not in arrays and ("dq" in arrays or "dk" in arrays):
        raise ValueError(f"{where}: dq and dk need delta; got None")


def cache_has_room(where: str, arrays: Arrays, sizes: Sizes, options: Options) -> None:
    """Raise ValueError unless caches, in blocks of 64 rows, have room for T rows after ``past``."""
    attention_fits(where, arrays, sizes, options)
    S, T = sizes["S"], sizes["T"]
    shared = "v" not in arrays
    if shared != ("vc" not in arrays) or (shared and sizes["E"] > sizes["D"]):
        raise ValueError(
            f"{where}: needs v and vc, or neither and E <= D; got {sorted(arrays)}, "
            f"{sizes['E']} and {sizes['D']}"
        )
    if S % 64:
        raise ValueError(f"{where}: needs caches of a multiple of 64 rows; got {S}")
    for past in arrays["past"].tolist():
        if not 0 <= past <= S - T:
            raise ValueError(f"{where}: {T} rows after past need past in 0 .. {S - T}; got {past}")
