"""The one shape check of the kernels' Python doors."""

from collections.abc import Sequence
from typing import Any

__all__ = ["MAX_THREADS", "check"]

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
