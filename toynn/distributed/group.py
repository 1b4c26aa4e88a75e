"""The ranks of a run and their collective calls; in a group of one these cost nothing.

Every collective call begins with a rendezvous: each rank says which call it makes, or that it has
failed, or that it leaves. So every rank learns of a failure at its next call, and no rank waits for
one that makes another call. ``fail`` explains how one rank's error reaches all.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Floats = NDArray[np.float32]
Table = NDArray[np.float64]


class Group:
    """A process that trains alone. See ``ranks.Ranks`` for several."""

    rank = 0
    size = 1
    host = ""
    #: host name of each rank; CPUs that each rank on this machine may use, by local rank
    hosts: Sequence[str] = ("",)
    local_cpus: Sequence[frozenset[int]] = ()
    #: index of this rank among the ranks on this machine
    local_rank = 0
    #: seconds to wait for a rank before all ranks are ended; 0: wait for ever
    patience = 0.0

    def exchange(self, numbers: Sequence[float]) -> Table:
        """Gather numbers (n,) from all ranks; return (size, n)."""
        return np.array([numbers], np.float64)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        return [value]

    def tell(self, value: T) -> T:
        """Return the value of rank 0."""
        return value

    def share(self, values: Floats) -> Floats:
        """Overwrite values with those of rank 0; return them."""
        return values

    def barrier(self, what: str) -> None:
        """Wait for all ranks."""

    def summing(self, order: str) -> Callable[[Floats], None]:
        """Return a function that sums an array over all ranks in place; sums.py has orders."""
        return _nothing

    def culprits(self) -> list[int]:
        """Return the ranks whose terms made a recent sum infinite or NaN."""
        return []

    def name(self, rank: int) -> str:
        """Return a rank's name in messages."""
        return "the one process"

    def fail(self, error: BaseException, text: str = "") -> str | None:
        """Report an error of this rank to all; return the message that this rank is to print.

        None: another rank prints it. ``text`` is the message, by default the error's.
        """
        return text or str(error)

    def hint(self, what: str) -> None:
        """Set the advice that is printed if a rank is killed."""


def _nothing(_: Any) -> None: ...
