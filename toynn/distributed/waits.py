"""Waits for other ranks, with a message after a while and an end after too long.

A rank that waits for longer than a second sends the others a note. Ranks that send no note are the
missing ones: in a long step, stopped, or on a machine that hangs. The first rank that waits reports
them. When its patience is over, it reports that too, and ends all processes.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

NOTE = 1.0  # seconds of a wait until a rank tells the others that it waits
NOTICE = 30.0  # seconds until the first one reports the missing ranks
PATIENCE = 1800.0  # seconds until all end
TURN = 10.0  # seconds that each rank waits longer than the one before, which may have stopped

NOTHING, SAY, END = range(3)


class Notes:
    """Notes among ranks, over a communicator of their own.

    Both a waiting thread and the thread that watches it read all notes that have arrived.
    """

    def __init__(self, comm: Any) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._sent: list[Any] = []  # requests that may not be complete
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
        """Read the notes that have arrived; return the last wait that each rank has announced."""
        note = np.zeros(2, np.int64)
        with self._lock:
            while self._comm.Iprobe():  # from any rank
                self._comm.Recv(note)
                self._newest[int(note[0])] = int(note[1])
            return dict(self._newest)


class Wait:
    """One wait of a rank, the ``number``-th of the run; all ranks number alike.

    ``patience`` is in seconds; 0: wait for ever.
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
        notes.newest()  # read them even in a rank that never waits: they would pile up
        self._here: set[int] = set()  # ranks that wait as well
        self._said = False
        #: ranks that have not come, as far as this rank knows
        self.missing: list[int] = []

    @property
    def passed(self) -> float:
        """Seconds since the wait began."""
        return self._clock() - self._begin

    def look(self) -> int:
        """Return what this rank is to do now: NOTHING, SAY which ranks are missing, or END all."""
        passed = self.passed
        if passed < min(NOTE, self._notice):
            return NOTHING
        if not self._here:
            self._here = {self._notes.rank}
            self._notes.send(self._number)
        newest = self._notes.newest()
        self._here |= {rank for rank, number in newest.items() if number == self._number}
        self.missing = [rank for rank in range(self._notes.size) if rank not in self._here]
        turn = TURN * sorted(self._here).index(self._notes.rank)
        if self._patience and passed >= self._patience + turn:
            return END
        if passed >= self._notice + turn and not self._said:
            self._said = True
            return NOTHING if turn else SAY
        return NOTHING
