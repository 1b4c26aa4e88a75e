"""How many threads each kernel of the device is given, and in how many passes it runs."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["PASSES", "SCRATCH", "Pass", "Sizes"]

GROUP = 256  # threads of a group; common.metal has the same number


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
    return Pass(function, (-(-n // GROUP), 1, 1), (GROUP, 1, 1))


#: The passes of each entry, in order.
PASSES: dict[str, Callable[[Sizes], list[Pass]]] = {
    "rmsnorm.forward": lambda s: [rows("rmsnorm_forward", s["N"])],
}

#: Bytes of memory that a launch needs of its own until its last pass is done.
SCRATCH: dict[str, Callable[[Sizes], int]] = {}
