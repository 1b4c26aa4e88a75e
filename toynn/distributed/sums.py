"""Sum an array over all ranks, in place, on each rank.

    ordered     ((x_0 + x_1) + x_2) + ...: in the order of the ranks, so with the same bits on every
                run and on any machines. Rank r is sent piece r of all arrays, adds them, and sends
                the sum to all: 2 (n - 1) / n of the array out, and as much in, as a ring has it.
    fast        MPI's own sum, in an order that it chooses by size and network: the last digits may
                differ from run to run.

Each array is cut into n pieces, one a rank, of one length but for the last ones.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ORDERS", "Summing"]

ORDERS = ("ordered", "fast")

Floats = NDArray[np.float32]


class Summing:
    """Sums over a communicator, each after a rendezvous. It keeps memory for one array.

    ``watched`` is what each of its calls, which wait for all ranks, stands in.
    """

    def __init__(
        self, mpi: Any, comm: Any, watched: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._in_place, self._comm, self._watched = mpi.IN_PLACE, comm, watched
        self._pieces = np.zeros(0, np.float32)
        #: ranks whose parts of sums were not finite, of the parts that this rank has seen
        self.culprits: set[int] = set()

    def fast(self, values: Floats) -> None:
        """Leave the order to MPI."""
        with np.errstate(over="ignore", invalid="ignore"):
            if not isfinite(float(values.sum())) and not np.isfinite(values).all():
                self.culprits.add(self._comm.rank)
        with self._watched():
            self._comm.Allreduce(self._in_place, values)

    def ordered(self, values: Floats) -> None:
        """Add in the order of the ranks."""
        rank, size = self._comm.rank, self._comm.size
        ends = [values.size * (r + 1) // size for r in range(size)]
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        begins = [end - count for end, count in zip(ends, counts, strict=True)]
        own = counts[rank]
        if self._pieces.size < size * own:
            self._pieces = np.empty(size * own, np.float32)
        pieces = self._pieces[: size * own]
        received = [own] * size, [own * r for r in range(size)]
        with self._watched():
            self._comm.Alltoallv([values, (counts, begins)], [pieces, received])
        total, rows = values[begins[rank] : ends[rank]], pieces.reshape(size, own)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is said later
            np.add(rows[0], rows[1], out=total)
            for row in rows[2:]:
                np.add(total, row, out=total)
            self._look(rows, total)
        with self._watched():
            self._comm.Allgatherv(self._in_place, [values, (counts, begins)])

    def _look(self, rows: Floats, total: Floats) -> None:
        """Note whose part is not finite, if the sum is not."""
        if isfinite(float(total.sum())):
            return
        bad = (rank for rank, row in enumerate(rows) if not np.isfinite(row).all())
        self.culprits.update(bad)
