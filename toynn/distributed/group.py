"""The ranks of a run, and what they do together: a group of one does nothing, at no cost.

Every collective call begins with a rendezvous: each rank says what it wants to do, or that it has
failed, or that it leaves. So the others hear of a rank that fails wherever they are, and no rank
waits for one that does something else. How one rank's error reaches all: see ``fail``.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Group"]

T = TypeVar("T")
Floats = NDArray[np.float32]
Table = NDArray[np.float64]


class Group:
    """A process that trains alone. See ``ranks.Ranks`` for several."""

    rank = 0
    size = 1
    host = ""
    #: machines of the ranks, by rank; CPUs that the ranks of this machine may use, by rank there
    hosts: Sequence[str] = ("",)
    local_cpus: Sequence[frozenset[int]] = ()
    #: number of this rank among those of this machine
    local_rank = 0
    #: seconds after which all end if a rank does not come; 0: never
    patience = 0.0

    def exchange(self, numbers: Sequence[float]) -> Table:
        """Return the numbers (n,) of all ranks, (size, n)."""
        return np.array([numbers], np.float64)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        return [value]

    def tell(self, value: T) -> T:
        """Return the value of rank 0."""
        return value

    def share(self, values: Floats) -> Floats:
        """Overwrite values by those of rank 0; return them."""
        return values

    def barrier(self, what: str) -> None:
        """Wait for all ranks."""

    def summing(self, order: str) -> Callable[[Floats], None]:
        """Return what adds arrays over all ranks, in place; sums.py explains ``order``."""
        return _nothing

    def culprits(self) -> list[int]:
        """Return the ranks whose parts of the last sums were not finite, if the sum was not."""
        return []

    def name(self, rank: int) -> str:
        """Return how messages call a rank."""
        return "the one process"

    def fail(self, error: BaseException, text: str = "") -> str | None:
        """Let the error of this rank be that of all; return what this rank is to say of it.

        None: another rank says it. ``text`` is what is said, by default that of the error.
        """
        return text or str(error)

    def hint(self, what: str) -> None:
        """Say what helps, where a rank is killed: it is said with that."""


def _nothing(_: Any) -> None: ...
