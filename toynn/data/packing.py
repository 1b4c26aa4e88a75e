"""Examples packed into rows of T tokens: best fit, so that little room is left over.

Longest first, each example goes into the row with the least room that has enough for it; among
those of one length the seed decides. A batch is some rows, of which only the tokens are computed.
Source: Johnson 1973, Near-optimal bin packing algorithms, chapter 2 (best fit decreasing: at most
11/9 of the fewest rows, and 4); natural lengths fill 97 to 99 percent.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import PackedBatch
from toynn.data.examples import Examples, joined

__all__ = ["PackedExamples", "pack", "packed_in_order"]

Indices = NDArray[np.int64]


def pack(lengths: Sequence[int] | Indices, room: int, order: Indices) -> list[list[int]]:
    """Return rows of indices whose lengths, of at most ``room`` each, add up to at most that.

    Of equal lengths those come first that are first in ``order``.
    """
    by_length = sorted(order.tolist(), key=lambda index: -int(lengths[index]))
    rows: list[list[int]] = []
    left: dict[int, list[int]] = {}  # rows by the room that is left in them
    rooms: list[int] = []  # those that there are, ascending
    for index in by_length:
        length = int(lengths[index])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            row, space = len(rows), room
            rows.append([])
        else:
            space = rooms[at]
            row = left[space].pop()
            if not left[space]:
                del left[space], rooms[at]
        rows[row].append(index)
        space -= length
        if space not in left:
            left[space] = []
            insort(rooms, space)
        left[space].append(row)
    return rows


class PackedExamples:
    """Endless training batches of ``batch`` rows: every example once in each epoch."""

    def __init__(self, examples: Examples, batch: int, seed: int) -> None:
        self._examples, self._batch, self._seed = examples, batch, seed
        self._epoch, self._next = 0, 0  # the row that comes next
        self._packed, self._rows = -1, [[0]]  # the epoch that is packed
        self._pack(0)
        self.examples = len(examples)
        #: batches that have every example once
        self.per_epoch = len(self._rows) / batch

    def __iter__(self) -> "PackedExamples":
        return self

    def __next__(self) -> PackedBatch:
        rows = [self._row() for _ in range(self._batch)]
        examples = (self._examples[index] for row in rows for index in row)
        return joined(examples, self._batch * self._examples.seq)

    def _row(self) -> list[int]:
        self._pack(self._epoch)
        row = self._rows[self._next]
        self._next += 1
        if self._next == len(self._rows):
            self._epoch, self._next = self._epoch + 1, 0
        return row

    def _pack(self, epoch: int) -> None:
        """Pack all examples anew, in rows whose order is drawn."""
        if epoch == self._packed:
            return
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self._examples))
        rows = pack(self._examples.lengths, self._examples.seq, order)
        self._rows = [rows[index] for index in rng.permutation(len(rows))]
        self._packed = epoch

    @property
    def state(self) -> dict[str, Any]:
        """Where it stands: set it again, with the same examples, and the same batches follow."""
        return {"seed": self._seed, "epoch": self._epoch, "row": self._next}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed, self._epoch, self._next = state["seed"], state["epoch"], state["row"]
        self._packed = -1


def packed_in_order(
    examples: Examples, batch: int, max_batches: int | None = None
) -> list[PackedBatch]:
    """All examples in batches of packed rows; at most max_batches, of examples spaced evenly."""
    lengths, room = examples.lengths, batch * examples.seq
    count = len(examples)
    if max_batches is not None and count:
        count = min(count, max(1, int(max_batches * room / lengths.mean())))
    chosen = np.array([index * len(examples) // count for index in range(count)], np.int64)
    rows = pack(lengths, examples.seq, chosen)
    if max_batches is not None:
        rows = rows[: batch * max_batches]
    return [
        joined((examples[index] for row in rows[first : first + batch] for index in row), room)
        for first in range(0, len(rows), batch)
    ]
