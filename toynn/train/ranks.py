"""The training loop of several processes, as differences from the loop of one.

Rank j mod n computes micro-batch j of an update. All ranks draw the same batches in the same order,
and each trains on its own. Their gradients are added in the order of the ranks before they are
clipped. So updates and weights are the same on all ranks. A signal to any rank stops all ranks at
the end of the step.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from toynn.distributed import Cost, Group
from toynn.errors import NonFiniteError
from toynn.train.feed import made
from toynn.train.filling import Filling
from toynn.train.interrupt import Interrupt
from toynn.train.loop import Loop, State
from toynn.train.options import Figures

__all__ = ["BLOCK", "RankLoop", "Spent"]

BLOCK = 2**20  # elements of each rank's gradients that are added at once


@dataclass
class Spent:
    """The time of this rank's steps, in seconds."""

    steps: int = 0
    whole: float = 0.0
    sums: float = 0.0  # adding the gradients of all ranks
    waits: float = 0.0  # waiting until all ranks had their gradients


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


class RankLoop(Loop):
    """The loop of one of several ranks; ``order`` of the sums: see distributed/sums.py."""

    def __init__(self, *given: Any, group: Group, order: str, **named: Any) -> None:
        super().__init__(*given, **named)
        self.group, self.order, self.add = group, order, group.summing(order)
        self.ranks = group.size
        self.spent, self.cost = Spent(), Cost(0, 0.0)
        self._interrupt: SharedInterrupt = SharedInterrupt(group)

    @property
    def share(self) -> int:
        """The most micro-batches of an update that a rank has."""
        return -(-self.per_update // self.group.size)

    # -- A step --------------------------------------------------------------------------------

    def _iterate(self) -> bool:
        """Take one step: an update from the micro-batches of all ranks; it may be skipped."""
        begin = time.perf_counter()
        result, part, since = self.result, self.result.part, self.result.window
        rate, hp = self._row()
        rows, loss, filling = self._own_batches()
        own = (filling.examples, filling.tokens, filling.learned, filling.room)
        waits = time.perf_counter()
        table = self.group.exchange([self._interrupt.heard, rows, loss, *own])
        self._interrupt.agree(int(table[:, 0].max()))
        sums = time.perf_counter()
        total = [float(sum(column)) for column in table.T[1:].tolist()]  # in the order of the ranks
        tokens = part.tokens + int(total[0])
        since.filling.add_counts(*map(int, total[2:]))
        session: Any = self.recipe.session
        session.combine(float(tokens), self.add, BLOCK * self.group.size)
        done = time.perf_counter()
        with self._update(tokens, rate):
            self.recipe.update(hp, result.updates == 0)
            since.loss += part.loss + total[1]
        end = time.perf_counter()
        since.seconds += end - begin
        spent = self.spent
        spent.steps, spent.whole = spent.steps + 1, spent.whole + end - begin
        spent.sums, spent.waits = spent.sums + done - sums, spent.waits + sums - waits
        return True

    def _own_batches(self) -> tuple[int, float, Filling]:
        """Accumulate this rank's batches; return their labels, summed loss and filling."""
        group, begun = self.group, self.result.part.batches
        engine: Any = self.recipe
        masks = engine.batches  # each micro-batch has its own dropout masks
        rows, loss, filling, index = 0, 0.0, Filling(), begun
        while True:
            batch = next(self.feed)
            if index % group.size == group.rank:
                engine.batches = masks + index - begun
                loss += self.recipe.accumulate(batch) * batch.rows
                rows += batch.rows
                filling.add(batch)
            index += 1
            if index == self.per_update or self.feed.ended():
                break
        engine.batches = masks + index - begun
        return rows, loss, filling

    def _skip(self, error: NonFiniteError) -> None:
        """Name the rank with the bad gradient. Raises NonFiniteError, as for one process."""
        culprits = self.group.culprits()
        whose = f"; it is that of {self.group.name(culprits[0])}" if culprits else ""
        super()._skip(NonFiniteError(f"{error}{whose}"))

    # -- Evaluation ----------------------------------------------------------------------------

    def _measured(self, begin: float, before: State) -> Iterator[tuple[Figures, int]]:
        """Evaluate batches in turns, one for each rank; yield the figures of all in order."""
        group, own, index = self.group, None, 0
        batches = map(made, self.valid) if self.options.eval_every else ()
        for index, batch in enumerate(batches, 1):
            turn = (index - 1) % group.size
            if turn == 0 and self._all_late(begin, index - 1):
                if self.result.iterations:
                    self._save(before)
                return
            if turn == group.rank:
                own = self._figures(batch), batch.rows
            if turn == group.size - 1:
                yield from (each for each in group.gather(own) if each is not None)
                own = None
        if index % group.size:
            yield from (each for each in group.gather(own) if each is not None)

    def _all_late(self, begin: float, done: int) -> bool:
        table = self.group.exchange([self._interrupt.heard, self._is_late(begin, done)])
        self._interrupt.agree(int(table[:, 0].max()))
        return bool(table[:, 1].any())
