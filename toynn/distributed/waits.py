"""Waits for other ranks: a message after a while, and an end after too long.

A rank that waits for longer than a second tells the others, by a note. Ranks that send none are
those that are waited for: in a long step, stopped, or on a machine that hangs. The first of the
ranks that wait says so; where their patience is over, it says that, too, and ends all processes.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["END", "NOTHING", "NOTICE", "PATIENCE", "SAY", "Notes", "Wait"]

NOTE = 1.0  # seconds of a wait after which a rank tells the others that it waits
NOTICE = 30.0  # after which one says for whom
PATIENCE = 1800.0  # after which all end
TURN = 10.0  # by which a rank waits longer than the one before it, which may have stopped since

NOTHING, SAY, END = range(3)


class Notes:
    """Notes among the ranks of a communicator that is for them alone.

    A thread may look after the wait of another one: each reads all notes that have come.
    """

    def __init__(self, comm: Any) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._sent: list[Any] = []  # what may still be on its way
        self._newest: dict[int, int] = {}
        self._lock = threading.Lock()

    def send(self, number: int) -> None:
        """Tell all others that this rank waits, for the ``number``-th time."""
        note = np.array([self.rank, number], np.int64)
        others = (rank for rank in range(self.size) if rank != self.rank)
        with self._lock:
            self._sent = [each for each in self._sent if not each[0].Test()]
            self._sent += [(self._comm.Isend(note, rank), note) for rank in others]

    def newest(self) -> dict[int, int]:
        """Read the notes that have come; return the last wait that each rank has told of."""
        note = np.zeros(2, np.int64)
        with self._lock:
            while self._comm.Iprobe():  # of any rank
                self._comm.Recv(note)
                self._newest[int(note[0])] = int(note[1])
            return dict(self._newest)


class Wait:
    """One wait of a rank: the ``number``-th of the run, and the same one on all ranks.

    ``patience`` is in seconds; 0: no end.
    """

    def __init__(
        self,
        notes: Notes,
        number: int,
        patience: float,
        notice: float = NOTICE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notes, self._number, self._clock = notes, number, clock
        self._patience, self._notice = patience, notice
        self._begin = clock()
        notes.newest()  # a rank that is always the last never looks for them: they would pile up
        self._here: set[int] = set()  # ranks that wait, too
        self._said = False
        #: ranks that are waited for, as far as this rank knows
        self.missing: list[int] = []

    @property
    def passed(self) -> float:
        """How many seconds it has taken."""
        return self._clock() - self._begin

    def look(self) -> int:
        """Return what this rank is to do now: NOTHING, SAY for whom it waits, or END all."""
        passed = self.passed
        if passed < min(NOTE, self._notice):
            return NOTHING
        if not self._here:
            self._here = {self._notes.rank}
            self._notes.send(self._number)
        told = self._notes.newest()
        self._here |= {rank for rank, number in told.items() if number == self._number}
        self.missing = [rank for rank in range(self._notes.size) if rank not in self._here]
        turn = TURN * sorted(self._here).index(self._notes.rank)
        if self._patience and passed >= self._patience + turn:
            return END
        if passed >= self._notice + turn and not self._said:
            self._said = True
            return NOTHING if turn else SAY
        return NOTHING
