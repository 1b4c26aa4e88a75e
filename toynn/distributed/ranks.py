"""Several ranks: rendezvous, the end of a run, and errors; one rank's error stops all ranks.

At a rendezvous ranks exchange numbers. The first two are the rank's state and the call that it
makes. A rank that waits checks for signals; after a while it sleeps, and leaves the CPU to others.
"""

import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.distributed.group import Group
from toynn.distributed.sums import ORDERS, Summing
from toynn.distributed.waits import END, NOTHING, NOTICE, PATIENCE, Notes, Wait
from toynn.distributed.watch import Watchdog
from toynn.errors import ConfigError, LifecycleError, RankError
from toynn.system import platform
from toynn.system.printing import print_line

T = TypeVar("T")
Floats = NDArray[np.float32]
Table = NDArray[np.float64]

FINE, FAILED, LEAVES = range(3)
ROOM = 14  # numbers that a rendezvous exchanges, besides its own two
GRACE = 60.0  # seconds that a failed rank waits for the others, which may be in a long step
SPIN, NAP = 2e-3, 5e-3  # seconds: a wait longer than SPIN sleeps between checks, at most NAP
CHUNK = 2**26  # elements that are sent at once


class Ranks(Group):
    """The ranks of an MPI communicator.

    Collective calls raise RankError if another rank has failed, has left, or makes another call.
    After that they raise LifecycleError.
    """

    def __init__(self, mpi: Any, watch: Watchdog) -> None:
        self._mpi, self._watch = mpi, watch
        self._comm = comm = mpi.COMM_WORLD.Dup()
        self.rank, self.size = comm.rank, comm.size
        self._ended = ""  # why there can be no further rendezvous
        self._speaker = 0  # the rank that reports it
        self._silent = False  # whether this rank has reported it
        self._hint = "what was saved last is whole"
        self._kept: Any = None  # keeps a request alive if a signal interrupts the wait for it
        self._notes, self._waits = Notes(comm.Dup()), 0
        #: seconds until a rank reports which ranks it waits for, and until all end (0: never)
        self.notice, self.patience = NOTICE, PATIENCE
        self._blocked: Wait | None = None
        self._sums = Summing(mpi, comm, self._watched)
        self.host = mpi.Get_processor_name()
        self.hosts = self.gather(self.host)
        cpus_here = platform.cpus()
        masks = self.gather((self.host, cpus_here))
        self.local_cpus = [cpus for host, cpus in masks if host == self.host]
        self.local_rank = [r for r in range(self.size) if self.hosts[r] == self.host].index(
            self.rank
        )
        if mpi.Query_thread() == mpi.THREAD_MULTIPLE:  # else no thread may use MPI
            threading.Thread(target=self._look_after, daemon=True).start()
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught

    # -- Rendezvous ----------------------------------------------------------------------------

    def _wait(self, request: Any) -> None:
        """Wait for a request. Raises RankError where MPI has lost another rank."""
        self._kept, wait = request, self._new_wait()
        try:
            while not request.Test():
                passed = wait.passed
                time.sleep(0 if passed < SPIN else min(passed / 20, NAP))
                if (what := wait.look()) != NOTHING:
                    self._say_missing(wait, what)
        except self._mpi.Exception as error:
            self._ended, self._speaker = "a connection is lost", self.rank
            raise RankError(f"{self.name(self.rank)}: MPI has lost another rank: {error}") from None
        self._kept = None

    def _new_wait(self) -> Wait:
        self._waits += 1
        return Wait(self._notes, self._waits, self.patience, self.notice)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let a thread watch an MPI call that waits for all ranks."""
        self._blocked = self._new_wait()
        try:
            yield
        finally:
            self._blocked = None

    def _look_after(self) -> NoReturn:
        while True:
            time.sleep(min(1.0, self.notice))
            wait = self._blocked
            if wait is not None and (what := wait.look()) != NOTHING:
                self._say_missing(wait, what)

    def _say_missing(self, wait: Wait, what: int) -> None:
        """Report the ranks that this rank waits for; end all processes after too long."""
        names = ", ".join(map(self.name, wait.missing)) or "no rank: a message does not arrive"
        waited = f"{self.name(self.rank)} has waited {wait.passed:,.0f} seconds for {names}"
        why = "in a long step, stopped, or on a machine that hangs"
        if what == END:
            print_line(f"toynn: error: {waited}: {why}; all ranks end; {self._hint}")
            self._watch.end()
            self._mpi.COMM_WORLD.Abort(2)
        limit = f"; after {self.patience:,.0f} seconds all end" if self.patience else ""
        print_line(f"toynn: {waited}: {why}{limit}")

    def _rendezvous(self, what: str, numbers: Sequence[float] = ()) -> Table:
        """Exchange numbers among ranks that all make the same call.

        Raises LifecycleError, RankError.
        """
        if self._ended:
            raise LifecycleError(f"{what}: the ranks of this run have separated: {self._ended}")
        table = self._said_by_all(FINE, what, numbers)
        states, purposes = table[:, 0], table[:, 1]
        if (states == FAILED).any():
            self._hear(self._messages(None))
        if (states == LEAVES).any():
            gone = int(np.argmax(states == LEAVES))
            self._part(f"{self.name(gone)} has ended", int(np.argmax(states == FINE)))
        if (purposes != purposes[0]).any():
            other = int(np.argmax(purposes != purposes[0]))
            self._part(f"{self.name(other)} does not do what {self.name(0)} does", 0)
        return table[:, 2 : 2 + len(numbers)]

    def _said_by_all(self, state: int, what: str, numbers: Sequence[float] = ()) -> Table:
        table, message = np.zeros((self.size, 2 + ROOM)), self._message(state, what, numbers)
        self._wait(self._comm.Iallgather(message, table))
        return table

    @staticmethod
    def _message(state: int, what: str, numbers: Sequence[float]) -> Table:
        message = np.zeros(2 + ROOM)
        message[:2] = state, zlib.crc32(what.encode())
        message[2 : 2 + len(numbers)] = numbers
        return message

    def _part(self, why: str, speaker: int) -> NoReturn:
        """End the run with an error, on all ranks of the rendezvous together."""
        self._ended, self._speaker = why, speaker
        raise RankError(f"{why}, while others go on")

    def exchange(self, numbers: Sequence[float]) -> Table:
        """Gather at most ROOM numbers (n,) from all ranks; return (size, n)."""
        return self._rendezvous("exchange", numbers)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks; they must be picklable."""
        self._rendezvous("gather")
        return list(self._comm.allgather(value))

    def tell(self, value: T) -> T:
        """Return the value of rank 0; it must be picklable."""
        self._rendezvous("tell")
        root_value: T = self._comm.bcast(value)
        return root_value

    def share(self, values: Floats) -> Floats:
        """Overwrite C-contiguous values with those of rank 0; return them."""
        self._rendezvous("share")
        flat = values.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            self._comm.Bcast(flat[start : start + CHUNK])
        return values

    def barrier(self, what: str) -> None:
        """Wait for all ranks."""
        self._rendezvous(what)

    def summing(self, order: str) -> Callable[[Floats], None]:
        """Return a function that sums arrays, to be called after a rendezvous.

        Raises ConfigError for an unknown order.
        """
        if order not in ORDERS:
            raise ConfigError(f"allreduce must be {' or '.join(ORDERS)}; got {order!r}")
        add: Callable[[Floats], None] = getattr(self._sums, order)
        return add

    def culprits(self) -> list[int]:
        """Return the ranks whose terms of the last sums were not finite."""
        lists = self.gather(sorted(self._sums.culprits))
        self._sums.culprits.clear()
        return sorted(set().union(*lists))

    # -- Errors, and the end -------------------------------------------------------------------

    def name(self, rank: int) -> str:
        """Return a rank's name in messages."""
        return f"rank {rank} of {self.size} ({self.hosts[rank]})"

    def hint(self, what: str) -> None:
        """Set the advice that is printed if this rank is killed or waits for too long."""
        self._hint = what
        self._watch.hint(what)

    def fail(self, error: BaseException, text: str = "") -> str | None:
        """Report an error to all ranks; return the message, if this rank is to print it.

        The others learn of it at their next rendezvous. The first rank that failed prints. If a
        rank takes longer than GRACE seconds, this rank prints the error and ends all processes.
        """
        text = text or str(error) or type(error).__name__
        if not self._ended:
            self._cry(text)
            messages = self._messages(text)
            first = next(rank for rank, each in enumerate(messages) if each is not None)
            self._ended, self._speaker = f"{self.name(first)} failed", first
            if any(each != text for each in messages):
                text = f"{self.name(self.rank)}: {text}"
        silent = self._silent or self.rank != self._speaker
        self._silent = True
        return None if silent else text

    def _cry(self, text: str) -> None:
        """Wait until all ranks know that this rank failed, or end all processes."""
        table, message = np.zeros((self.size, 2 + ROOM)), self._message(FAILED, "", ())
        request = self._comm.Iallgather(message, table)
        start = time.perf_counter()
        while not request.Test():
            if time.perf_counter() - start > GRACE:
                print_line(f"toynn: error: {self.name(self.rank)}: {text}")
                self._watch.end()
                self._mpi.COMM_WORLD.Abort(2)
            time.sleep(NAP)

    def _messages(self, message: str | None) -> list[str | None]:
        return list(self._comm.allgather(message))

    def _hear(self, messages: list[str | None]) -> NoReturn:
        """Raise the error of another rank, which prints it itself."""
        rank = next(rank for rank, each in enumerate(messages) if each is not None)
        self._ended, self._speaker = f"{self.name(rank)} failed", rank
        raise RankError(f"{self.name(rank)}: {messages[rank]}")

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print an uncaught error once for all ranks, with the rank that raised it."""
        message = self.fail(error)
        if message is not None:
            lines = "".join(traceback.format_exception(kind, error, trace))
            print_line(f"{lines}toynn: error: {message}")

    def leave(self) -> None:
        """Wait for all ranks to end; another rank's error is printed there."""
        if not self._ended:
            self.patience = 0  # rank 0 may still evaluate and write, for as long as it takes
            table = self._said_by_all(LEAVES, "")
            self._ended = "the run has ended"
            if (table[:, 0] == FAILED).any():
                self._messages(None)
        self._watch.end()
