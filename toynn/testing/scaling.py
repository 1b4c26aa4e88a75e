"""How a call scales with cores, measured and simulated, and where the speed-up is lost.

`record` runs a call on some cores and notes the CPU time of each share of each launch. Other load
on the machine hardly matters to CPU times. With ``alone``, one core computes the shares of
all cores, one after the other, cut as the kernels cut them. `simulate` then says how long cores
that run at once would take:

    time of a launch = max(serial + sum over calls (hand-over + last share), bytes / bandwidth)

Cores of a simulated machine share no caches. They share memory only if a bandwidth is given.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields
from time import perf_counter, process_time, thread_time
from typing import NamedTuple

from toynn._kernels.base import pool
from toynn.backends.threads import set_num_threads

#: A call of two threads takes 0.5 microseconds on a quiet machine (docs/performance.md). How it is
#: divided is an estimate: two cache lines go from core to core for each further thread.
HAND_OVER = (300.0, 200.0)


class Call(NamedTuple):
    """A call of the thread pool: nanoseconds of shares, and of pieces that any thread may take."""

    shares: tuple[int, ...]
    pieces: tuple[int, ...] = ()


class Launch(NamedTuple):
    """A kernel call: bytes that it moves, nanoseconds on one thread, and calls of the pool."""

    op: str
    nbytes: int
    serial: int
    calls: tuple[Call, ...] = ()

    @property
    def work(self) -> int:
        """Nanoseconds of all threads together."""
        return self.serial + sum(sum(call.shares) + sum(call.pieces) for call in self.calls)


@dataclass(frozen=True)
class Machine:
    """Cores, the last ``slow`` of them at ``pace`` times the rate of the others.

    ``hand_over`` holds the nanoseconds of a call of the pool, and of each further thread in it.
    ``bandwidth`` is the bytes per second of all cores together.
    """

    cores: int
    hand_over: tuple[float, float] = HAND_OVER
    bandwidth: float = float("inf")
    slow: int = 0
    pace: float = 0.5

    @property
    def rate(self) -> float:
        """The rate of all cores together, where a core that is not slow has the rate 1."""
        return self.cores - self.slow + self.slow * self.pace

    def last(self, call: Call) -> float:
        """Return nanoseconds until the last share is done; the first free core takes a piece."""
        paces = [1.0 if i < self.cores - self.slow else self.pace for i in range(self.cores)]
        free = [
            (spent / pace, pace)
            for spent, pace in zip((*call.shares, *[0] * self.cores), paces, strict=False)
        ][: len(call.shares)]
        heapq.heapify(free)
        for piece in call.pieces:
            at, pace = free[0]
            heapq.heapreplace(free, (at + piece / pace, pace))
        return max(at for at, _ in free)


@dataclass
class Lost:
    """Nanoseconds of launches on some cores: ``time`` is ``ideal`` plus all losses."""

    ideal: float = 0.0  # the time on one core / the rate of all
    serial: float = 0.0  # what only one thread computes
    uneven: float = 0.0  # shares too few, or unequal: threads wait for the last one
    hand_over: float = 0.0  # threads are called, and waited for
    growth: float = 0.0  # shares together take longer than one thread: repeated work, caches
    memory: float = 0.0  # bytes at the bandwidth take longer than all this

    @property
    def time(self) -> float:
        """Nanoseconds in all."""
        return sum(astuple(self))

    def __iadd__(self, other: "Lost") -> "Lost":
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


def simulate(launch: Launch, alone: int, machine: Machine) -> Lost:
    """Return the time of a launch that is recorded with the machine's number of cores.

    ``alone`` is its nanoseconds on one core.
    """
    lost = Lost(alone / machine.rate)
    lost.serial = launch.serial * (1 - 1 / machine.rate)
    for call in launch.calls:
        ideal = (sum(call.shares) + sum(call.pieces)) / machine.rate
        lost.uneven += machine.last(call) - ideal
        if len(call.shares) > 1:
            each, further = machine.hand_over
            lost.hand_over += each + further * (len(call.shares) - 1)
    lost.growth = (launch.work - alone) / machine.rate
    lost.memory = max(0.0, 1e9 * launch.nbytes / machine.bandwidth - lost.time)
    return lost


def by_op(launches: Sequence[Launch], alone: Sequence[Launch], machine: Machine) -> dict[str, Lost]:
    """Return the times of ops, the slowest first; ``alone`` are the launches on one core."""
    best: defaultdict[str, Lost] = defaultdict(Lost)
    for launch, alone_launch in zip(launches, alone, strict=True):
        best[launch.op] += simulate(launch, alone_launch.work, machine)
    return dict(sorted(best.items(), key=lambda each: -each[1].time))


@dataclass
class Timings:
    """Launches of a call on some cores, with the least times of all tries; the best wall time."""

    launches: list[Launch]
    seconds: float = field(default=float("inf"))


def record(call: Callable[[], object], cores: int, *, alone: bool, tries: int) -> Timings:
    """Return the launches of a call on up to ``cores`` threads, or as many shares ``alone``.

    ``alone``: each share and piece has its least time over the tries. Otherwise threads take
    different pieces each time, so the try whose last share took least counts. Programs must be
    compiled for as many threads already, and the call must run the same launches each time.
    """
    set_num_threads(cores)
    best: Timings | None = None
    for _ in range(tries):
        with pool.Recording(alone) as recording:
            start = perf_counter()
            call()
            seconds = perf_counter() - start
        launches = [
            Launch(
                name,
                nbytes,
                max(0, cpu - sum(spent for spent, _, _ in calls)),
                tuple(Call(tuple(shares), tuple(pieces)) for _, shares, pieces in calls),
            )
            for name, nbytes, _, cpu, calls in recording.launches()
        ]
        if best is None:
            best = Timings(launches, seconds)
        else:
            pairs = zip(best.launches, launches, strict=True)
            best.launches = [_least(one, other, alone=alone) for one, other in pairs]
            best.seconds = min(best.seconds, seconds)
    assert best is not None
    return best


def _least(one: Launch, other: Launch, *, alone: bool) -> Launch:
    calls = []
    for a, b in zip(one.calls, other.calls, strict=True):
        if alone:
            calls.append(Call(*(tuple(map(min, *each)) for each in zip(a, b, strict=True))))
        else:
            calls.append(min(a, b, key=lambda call: max(call.shares)))
    return Launch(one.op, one.nbytes, min(one.serial, other.serial), tuple(calls))


def record_pieces(op: str, call: Callable[[], object], pieces: int, tries: int) -> Timings:
    """Record a call of another library, whose threads share out ``pieces`` equal pieces.

    This thread's CPU time counts as serial; the CPU time of all others is divided by ``pieces``. No
    thread may spin while it is idle.
    """
    turns = []
    for _ in range(tries):
        start, all_, mine = perf_counter(), process_time(), thread_time()
        call()
        mine, all_ = thread_time() - mine, process_time() - all_
        turns.append((perf_counter() - start, mine, all_ - mine))
    seconds, serial, shared = map(min, zip(*turns, strict=True))
    each = int(1e9 * shared / pieces)
    return Timings([Launch(op, 0, int(1e9 * serial), (Call((0,), (each,) * pieces),))], seconds)


def on_cores(launches: Iterable[Launch], cores: int) -> list[Launch]:
    """Return the launches of `record_pieces` with one share for each of ``cores`` cores."""
    return [
        each._replace(calls=tuple(Call((0,) * cores, call.pieces) for call in each.calls))
        for each in launches
    ]
