"""The shape checks of the kernels' Python doors."""

from collections.abc import Sequence
from math import inf
from typing import Any

from toynn.dtypes import GGUF_BLOCKS
from toynn.precision import PRECISIONS

__all__ = ["MAX_THREADS", "check", "check_limits", "precision_index", "row_length", "sequences"]

MAX_THREADS = 1024  # the OpenMP runtime ends the process when it cannot make a thread


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


def check_limits(where: str, window: int, cap: float, *, causal: bool = True) -> None:
    """Raise ValueError for a window or a cap of attention that means nothing; 0 is none."""
    if window < 0 or (window and not causal):
        raise ValueError(
            f"{where}: window is how many keys a row sees, 0 for all, and causal; got {window}"
        )
    if not 0 <= cap < inf:
        raise ValueError(f"{where}: cap must be a number above 0, or 0 for none; got {cap}")


def row_length(where: str, type: str, elements: int) -> int:
    """Return the length of a row of so many elements as a door takes it: in floats, or in bytes.

    Raises ValueError for a type that is not in GGUF_BLOCKS and where the row is not whole blocks.
    """
    if type not in GGUF_BLOCKS:
        raise ValueError(f"{where}: type needs one of {', '.join(GGUF_BLOCKS)}; got {type!r}")
    block, nbytes = GGUF_BLOCKS[type]
    if elements % block:
        raise ValueError(
            f"{where}: {type} needs rows of a multiple of {block} elements; got {elements}"
        )
    return elements if type == "F32" else elements // block * nbytes


def precision_index(where: str, precision: str) -> int:
    """Return the number of a precision in PRECISIONS; ValueError if there is none of that name."""
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ValueError(f"{where}: precision needs one of {known}; got {precision!r}")
    return PRECISIONS.index(precision)


def sequences(where: str, count: int, room: int, *, of: int = 1) -> None:
    """Raise ValueError unless there are so many sequences, in groups ``of`` so many."""
    if not of <= count <= room or count % of:
        what = f"a multiple of {of}, " if of > 1 else ""
        raise ValueError(f"{where}: count needs {what}{of} to {room}; got {count}")
