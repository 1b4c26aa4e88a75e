"""Kernels and the machine's limits: each kernel is checked, timed, and compared with its bound."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import toynn._kernels as kernels
from toynn.backends.work import seconds, worth
from toynn.numerics.precision import ALL_PRECISIONS
from toynn.testing.calls import check, invoke, times
from toynn.testing.cases import CASES, Call, Sizes
from toynn.testing.limits import Bound, Limits


@dataclass(frozen=True)
class KernelTime:
    """A kernel at a shape or in a step: work, time, and its share of the limit that binds it."""

    kernel: str
    shape: str
    threads: int
    calls: int  # per step; 1 in the table of kernels
    seconds: float  # all calls together
    flops: int
    nbytes: int
    share: float  # least possible time / time
    limit: str  # "float32", "bfloat16", "tiles", "int8" or "memory"

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second."""
        return self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        """Gigabytes moved a second."""
        return self.nbytes / self.seconds / 1e9


def kernel_rows(
    ops: Iterable[str],
    limits: Limits,
    precision: str = "highest",
    shapes: Collection[str] | None = None,
) -> Iterator[KernelTime]:
    """Check and time every entry of these ops at the case table's bench shapes.

    ``shapes``, if given, names the shapes to run. A call gets as many of ``limits.n_threads``
    threads as a training step would give it. Raises AssertionError if a result exceeds the case's
    tolerance.
    """
    for op in ops:
        for shape, sizes in CASES[op].bench.items():
            if shapes is not None and shape not in shapes:
                continue
            for call in CASES[op].calls(np.random.default_rng(0), **sizes):
                yield _kernel_row(op, shape, sizes, call, limits, precision)


def _kernel_row(
    op: str, shape: str, sizes: Sizes, call: Call, limits: Limits, precision: str
) -> KernelTime:
    of_products = precision if _takes_precision(f"{op}.{call.entry}") else None
    if of_products:
        call = replace(call, options=call.options | {"precision": precision})
    flops, nbytes = CASES[op].work(call, sizes)
    n_threads = min(limits.n_threads, worth(seconds(flops, nbytes)))
    check(op, call, invoke(op, call, n_threads))
    return _row(
        *(f"{op}.{call.entry}", shape, n_threads, 1, min(times(op, call, n_threads))),
        *(flops, nbytes, limits, of_products),
    )


def _takes_precision(entry: str) -> bool:
    """Return whether an entry takes a precision."""
    op, _, name = entry.partition(".")
    entries = getattr(getattr(kernels, op), "entries", {})  # quants, random: plain functions
    return name in entries and "precision" in entries[name].signature.scalars


def step_rows(
    shape: str, step: Callable[[], object], session: Any, limits: Limits, tries: int = 5
) -> list[KernelTime]:
    """Return the kernels of the fastest of ``tries`` steps, the slowest kernel first."""
    steps = [_one_step(step, session) for _ in range(tries)]
    fastest = min(steps, key=lambda rows: sum(ms for _, _, ms, _, _ in rows))
    return [
        _row(
            *(op, shape, limits.n_threads, calls, ms / 1e3, flops, nbytes, limits),
            session.matmul_precision if _takes_precision(op) else None,
        )
        for op, calls, ms, flops, nbytes in sorted(fastest, key=lambda row: -row[2])
    ]


def least_seconds(session: Any, limits: Limits) -> float:
    """Return the roofline of a session's training step: the time of its nodes at their limits.

    Raises ValueError for packed rows: attention's work then depends on the batch.
    """
    tape = session.tape
    if any(node.at_most for node in tape.nodes):
        raise ValueError(
            "least_seconds: packed rows have no roofline: the work depends on the batch"
        )
    each = zip(tape.nodes, bounds(session, limits), strict=True)
    return sum(b.seconds for node, b in each if node.phase in tape.phases("update"))


def bounds(session: Any, limits: Limits) -> list[Bound]:
    """Return the least time of each node of a session's tape, and what sets it.

    A node computes its flops at the rate of its precision. It moves its bytes at the rate of the
    cache or memory that holds them. The longer of the two times counts.
    """
    rows = []
    for node in session.tape.nodes:
        index = node.sizes.get("precision")
        exactness = None if index is None else ALL_PRECISIONS[index % len(ALL_PRECISIONS)]
        at = limits.n_threads
        rows.append(limits.bound(node.flops, node.nbytes, at, precision=exactness))
    return rows


def node_seconds(step: Callable[[], object], session: Any, tries: int = 5) -> list[float]:
    """Return the least time of each node over ``tries`` steps, after one untimed step."""
    step()
    least = [float("inf")] * len(session.tape.nodes)
    before = session.times()
    for _ in range(tries):
        step()
        now = session.times()
        spent = [(b - a) / 1e9 for (_, a), (_, b) in zip(before, now, strict=True)]
        least, before = list(map(min, least, spent)), now
    return least


def _one_step(step: Callable[[], object], session: Any) -> list[tuple[str, int, float, int, int]]:
    """Run a step; return op, calls, milliseconds, flops and bytes of each kernel in it."""
    before = {row.op: (row.calls, row.ms, row.flops, row.nbytes) for row in session.profile().rows}
    step()
    rows = []
    for row in session.profile().rows:
        calls, ms, flops, nbytes = before[row.op]
        spent = (row.calls - calls, row.ms - ms, row.flops - flops, row.nbytes - nbytes)
        if spent[0]:
            rows.append((row.op, *spent))
    return rows


def _row(
    kernel: str,
    shape: str,
    n_threads: int,
    calls: int,
    seconds: float,
    flops: int,
    nbytes: int,
    limits: Limits,
    precision: str | None,
) -> KernelTime:
    bound = limits.bound(flops, nbytes, n_threads, calls=calls, precision=precision)
    share = bound.seconds / seconds
    return KernelTime(kernel, shape, n_threads, calls, seconds, flops, nbytes, share, bound.limit)
