"""The processes that train a model: what the loop asks of them.

    share     micro-batches of an update: rank j mod n computes micro-batch j
    add       the gradients and counts of all ranks, in the order of the ranks; then they update
    agree     on signals: a signal to any rank stops all ranks at the end of the step
    gather    the figures of evaluated batches

``Alone`` is the one process of most runs: it has nothing to add and nobody to agree with. In
`Ranks` all processes draw the same batches in the same order, and each trains on its own. Gradients
are added before they are clipped. So updates and weights are the same on all ranks.
"""

import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import Batch
from toynn.distributed import Cost, Group
from toynn.errors import NonFiniteError
from toynn.train.feed import Feed
from toynn.train.interrupt import Interrupt
from toynn.train.state import Filling, Part

T = TypeVar("T")

BLOCK = 2**20  # elements of each rank's gradients that are added at once


class Alone:
    """The one process of a run."""

    rank, size = 0, 1
    interrupt: Interrupt

    def __init__(self) -> None:
        self.interrupt = Interrupt()

    def share(self, feed: Feed, part: Part) -> Iterator[tuple[Batch, bool]]:
        """Yield this process's micro-batches of an update; True with the one that updates.

        An update after that one's backward pass is part of the same program.
        """
        is_last = False
        while not is_last:
            batch = next(feed)
            part.batches += 1
            is_last = part.batches == feed.per_update or feed.ended()
            yield batch, is_last

    def add(self, part: Part, row: NDArray[np.float32], is_first: bool) -> None:
        """Update by the gradients of all ranks; ``part`` becomes the sums of all ranks.

        A process that is alone has updated already, with its last micro-batch.
        """

    def agree(self, is_late: bool) -> bool:
        """Return whether it is late for any rank; all ranks learn of each other's signals."""
        return is_late

    def gather(self, value: T | None) -> list[T]:
        """Return the values of all ranks, by rank, without None."""
        return [] if value is None else [value]


@dataclass
class Spent:
    """The time of this rank's steps, in seconds."""

    steps: int = 0
    whole: float = 0.0
    sums: float = 0.0  # adding the gradients of all ranks
    waits: float = 0.0  # waiting until all ranks had their gradients

    def add(self, seconds: float) -> None:
        """Add a step."""
        self.steps += 1
        self.whole += seconds


class SharedInterrupt(Interrupt):
    """A signal takes effect when all ranks know of it; rank 0 prints the answer."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self.heard = 0  # the signal that this rank got

    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._handle(number, frame)
        self.heard, self.requested, self.number = number, False, None

    def _answer(self) -> bytes:
        return super()._answer() if self._group.rank == 0 else b""

    def agree(self, number: int) -> None:
        """Act on the signal that any rank got; 0: none."""
        if number and not self.requested:
            self.requested, self.number, self._since = True, number, time.perf_counter()


class Ranks(Alone):
    """One of several processes; ``order`` of the sums: see distributed/sums.py."""

    interrupt: SharedInterrupt

    def __init__(self, group: Group, recipe: Any, order: str) -> None:
        self.rank, self.size = group.rank, group.size
        self.group, self.recipe, self.order = group, recipe, order
        self.interrupt, self.sum = SharedInterrupt(group), group.summing(order)
        self.spent, self.cost = Spent(), Cost(0, 0.0)

    def share(self, feed: Feed, part: Part) -> Iterator[tuple[Batch, bool]]:
        """Yield this rank's micro-batches; none updates before the gradients are added."""
        for batch, _ in super().share(feed, part):
            if (part.batches - 1) % self.size == self.rank:
                yield batch, False
            else:
                self.recipe.batches += 1  # each micro-batch has its own dropout masks

    def add(self, part: Part, row: NDArray[np.float32], is_first: bool) -> None:
        """Add the gradients and counts of all ranks, and update.

        Raises NonFiniteError, which names the rank with the bad gradient.
        """
        begin = time.perf_counter()
        figures = (part.tokens, part.loss, *astuple(part.filling))
        table = self.group.exchange([self.interrupt.heard, *figures])
        self.interrupt.agree(int(table[:, 0].max()))
        exchanged = time.perf_counter()
        totals = [float(sum(column)) for column in table.T[1:].tolist()]  # in the ranks' order
        part.tokens, part.loss = int(totals[0]), totals[1]
        part.filling = Filling(*map(int, totals[2:]))
        self.recipe.session.combine(float(part.tokens), self.sum, BLOCK * self.size)
        self.spent.waits += exchanged - begin
        self.spent.sums += time.perf_counter() - exchanged
        try:
            self.recipe.update(row, is_first)
        except NonFiniteError as error:
            culprits = self.group.culprits()
            whose = f"; it is that of {self.group.name(culprits[0])}" if culprits else ""
            raise NonFiniteError(f"{error}{whose}") from error

    def agree(self, is_late: bool) -> bool:
        """Return whether it is late for any rank, and act on the signals of all ranks."""
        table = self.group.exchange([self.interrupt.heard, is_late])
        self.interrupt.agree(int(table[:, 0].max()))
        return bool(table[:, 1].any())

    def gather(self, value: T | None) -> list[T]:
        """Return the values of all ranks, by rank, without None."""
        return [each for each in self.group.gather(value) if each is not None]
