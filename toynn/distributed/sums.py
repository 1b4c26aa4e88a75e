"""Sum an array over all ranks, in place, on each rank.

    ordered     ((x_0 + x_1) + x_2) + ...: in the order of the ranks, so the bits are the same in
                    every run, on any machines. Rank r receives piece r of all arrays, adds them and
                    sends the sum to all: 2 (n - 1) / n of the array each way, as in a ring.
        fast        MPI's own sum. MPI chooses the order by size and network, so the last digits may
                    differ from run to run.

Each array is cut into n pieces, one a rank, whose lengths differ by at most one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDERS = ("ordered", "fast")

Floats = NDArray[np.float32]


class Summing:
    """Sums over a communicator, each after a rendezvous. Keeps memory for one array.

    ``watched`` returns a context manager for each call that waits for all ranks.
    """

    def __init__(
        self, mpi: Any, comm: Any, watched: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._in_place, self._comm, self._watched = mpi.IN_PLACE, comm, watched
        self._pieces = np.zeros(0, np.float32)
        #: ranks whose terms were not finite, among the terms that this rank has seen
        self.culprits: set[int] = set()

    def fast(self, values: Floats) -> None:
        """Sum in MPI's order."""
        with np.errstate(over="ignore", invalid="ignore"):
            if not isfinite(float(values.sum())) and not np.isfinite(values).all():
                self.culprits.add(self._comm.rank)
        with self._watched():
            self._comm.Allreduce(self._in_place, values)

    def ordered(self, values: Floats) -> None:
        """Sum in the order of the ranks."""
        rank, size = self._comm.rank, self._comm.size
        ends = [values.size * (r + 1) // size for r in range(size)]
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        begins = [end - count for end, count in zip(ends, counts, strict=True)]
        length = counts[rank]
        if self._pieces.size < size * length:
            self._pieces = np.empty(size * length, np.float32)
        pieces = self._pieces[: size * length]
        received = [length] * size, [length * r for r in range(size)]
        with self._watched():
            self._comm.Alltoallv([values, (counts, begins)], [pieces, received])
        total, rows = values[begins[rank] : ends[rank]], pieces.reshape(size, length)
        with np.errstate(over="ignore", invalid="ignore"):  # reported later
            np.add(rows[0], rows[1], out=total)
            for row in rows[2:]:
                np.add(total, row, out=total)
            self._look(rows, total)
        with self._watched():
            self._comm.Allgatherv(self._in_place, [values, (counts, begins)])

    def _look(self, rows: Floats, total: Floats) -> None:
        """If the sum is not finite, note the ranks whose terms are not."""
        if isfinite(float(total.sum())):
            return
        bad = (rank for rank, row in enumerate(rows) if not np.isfinite(row).all())
        self.culprits.update(bad)
