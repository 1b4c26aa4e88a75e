"""The measured limits of this machine, and the limit of a kernel: the roofline.

A kernel that does F flops on arrays of N bytes takes at least F / (rate of multiply-adds) and at
least N / (rate of memory). The larger of the two times is its limit. Source: Williams, Waterman &
Patterson 2009, doi:10.1145/1498765.1498785. The measuring loops are in
toynn/_kernels/base/limits.pyx.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from toynn._kernels import limits as loops

#: Total bytes of a memory loop's arrays: from a core's cache to main memory.
SIZES = tuple(2**power for power in range(16, 29, 2))

SECONDS = 0.08  # for each loop, which is repeated; the best rate counts
ROUNDS = 200_000  # of multiply-adds in a call, about a millisecond
TILE_ROUNDS = 20_000  # the same in tiles
MOVED = 2**25  # least bytes that a call of a memory loop moves, about a millisecond


class Bound(NamedTuple):
    """The least time of a kernel, and what sets it."""

    seconds: float
    limit: str  # "float32", "bfloat16", "tiles", "int8" or "memory"


@dataclass(frozen=True)
class Rates:
    """Best rates on a number of threads: flop/s, and bytes/s by size and loop.

    ``bfloat16`` is 0 if the CPU cannot multiply pairs of bfloat16, ``tiles`` is 0 without AMX.
    """

    float32: float
    bfloat16: float
    memory: dict[int, dict[str, float]]
    tiles: float = 0.0

    def peaks(self, precision: str | None) -> dict[str, float]:
        """Return the rates that a product may use at a precision; None: not a product.

        In tiles, a product at "highest" is six products of bfloat16 parts, at "high" three. In 8
        bits, vpdpbusd multiplies four terms in the time of one float32 term.
        """
        rates = {"float32": self.float32}
        if precision == "int8":
            return {"int8": 4 * self.float32}
        if precision is not None:
            rates["tiles"] = self.tiles / {"highest": 6, "high": 3, "medium": 1}[precision]
        if precision == "medium":
            rates["bfloat16"] = self.bfloat16
        return rates

    def memory_for(self, nbytes: int) -> float:
        """Return the best memory loop's rate at the smallest measured size that holds ``nbytes``.

        More bytes than the largest size get the largest size's rate.
        """
        size = next((size for size in self.memory if size >= nbytes), max(self.memory))
        return max(self.memory[size].values())


@dataclass(frozen=True)
class Limits:
    """The rates on one thread and on all."""

    n_threads: int
    one: Rates
    all: Rates

    def bound(
        self,
        flops: int,
        nbytes: int,
        n_threads: int,
        *,
        calls: int = 1,
        precision: str | None = None,
    ) -> Bound:
        """Return the least time of this work on ``n_threads`` threads, in ``calls`` equal calls.

        ``precision`` is a product's precision, None for other work. Between one thread and all, a
        rate is assumed to grow in proportion to the threads, up to the rate of all threads.
        """
        one, all_ = self.one.peaks(precision), self.all.peaks(precision)
        peaks = {name: _between(n_threads, one[name], all_[name]) for name in one}
        peak = max(peaks, key=lambda name: peaks[name])
        size = nbytes // calls
        memory = _between(n_threads, self.one.memory_for(size), self.all.memory_for(size))
        computing, moving = flops / peaks[peak], nbytes / memory
        return Bound(computing, peak) if computing > moving else Bound(moving, "memory")


def _between(n_threads: int, one: float, all_: float) -> float:
    return one if n_threads == 1 else max(one, min(n_threads * one, all_))


def measure(n_threads: int, seconds: float = SECONDS, sizes: tuple[int, ...] = SIZES) -> Limits:
    """Measure the limits for one thread and for ``n_threads``; takes about five seconds."""
    one = _rates(1, seconds, sizes)
    return Limits(n_threads, one, _rates(n_threads, seconds, sizes) if n_threads > 1 else one)


def _rates(n_threads: int, seconds: float, sizes: tuple[int, ...]) -> Rates:
    pairs = tiles = 0.0
    if loops.has_pairs():
        pairs = _best(lambda: loops.multiply_pairs(ROUNDS, n_threads)[0], seconds)
    if loops.has_tiles():
        tiles = _best(lambda: loops.multiply_tiles(TILE_ROUNDS, n_threads)[0], seconds)
    return Rates(
        _best(lambda: loops.multiply_adds(ROUNDS, n_threads=n_threads)[0], seconds),
        pairs,
        {size: _memory(size, n_threads, seconds) for size in sizes},
        tiles,
    )


def _memory(size: int, n_threads: int, seconds: float) -> dict[str, float]:
    """Return the rates of the loops over arrays of ``size`` bytes in all."""
    floats, repeats = size // 4, max(1, MOVED // size)
    x = np.ones(floats, np.float32)
    (y, half), (z, a, b) = np.split(x, 2), np.split(x[: floats // 3 * 3], 3)
    return {
        "read": _best(lambda: loops.read(x, repeats, n_threads)[0], seconds),
        "update": _best(lambda: loops.update(y, half, repeats, n_threads), seconds),
        "triad": _best(lambda: loops.triad(z, a, b, repeats, n_threads), seconds),
    }


def _best(work: Callable[[], int], seconds: float) -> float:
    """Return the highest rate among at least three calls; each returns the work that it did."""
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        done = work()
        rates.append(done / (time.perf_counter() - start))
    return max(rates)
