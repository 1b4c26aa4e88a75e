"""The CPU backend: aligned memory, and programs of Cython kernels."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn._kernels.base.entry import Entry
from toynn.backends.cpu.feed import Feed as CompiledFeed
from toynn.backends.cpu.precision import automatic, multiplies_in
from toynn.backends.cpu.prepacked import Prepacked, Prepacks
from toynn.backends.cpu.program import CompiledProgram
from toynn.backends.cpu.squares import Squares
from toynn.backends.host import HostBackend, HostBuffer, Layout, View
from toynn.backends.protocol import (
    ELEMENTS,
    Accumulate,
    Buffer,
    Feed,
    FeedInput,
    Launch,
    Place,
    Program,
    RowLimit,
    UndoLog,
    aligned,
)
from toynn.backends.threads import get_num_threads, spread_memory, warn_of_refusal
from toynn.backends.work import dequantized, seconds, worth

__all__ = ["CPU", "create"]


class CPUProgram:
    """Kernel calls with resolved addresses, and their shared scratch memory."""

    def __init__(
        self,
        backend: "CPU",
        compiled: CompiledProgram,
        workspace: HostBuffer,
        prepacked: Sequence[Prepacked],
        squares: Squares,
        phases: str,
        computing: frozenset[str],
        functions: Mapping[int, Callable[[], None]],
    ) -> None:
        self._backend, self._compiled, self.workspace = backend, compiled, workspace
        self._prepacked, self._squares = prepacked, squares
        self._phases = phases  # the letter of each launch
        self._computing = computing  # the phases that compute parameter gradients
        self._functions = functions  # of Python, by the numbers of their launches
        self._called = {i: (0, 0) for i in functions}  # calls, nanoseconds

    @property
    def scratch(self) -> int:
        """Bytes of the scratch memory."""
        return self.workspace.nbytes + self._squares.nbytes

    def run_one(self, launch: int, accumulate: bool) -> None:
        """Run a launch by its number; it is done when this returns."""
        self.run(self._phases[launch], accumulate, launch, launch + 1)

    def run(self, phases: str, accumulate: bool, first: int = 0, end: int | None = None) -> None:
        """Run the launches of these phases, from ``first`` to ``end``; they are done on return."""
        threads = self._backend.threads()
        for each in self._prepacked:
            each.refresh(threads)
        self._squares.before(self._backend.computed)
        last = len(self._phases) if end is None else end
        try:
            for i in self._functions:
                if first <= i < last and self._phases[i] in phases:
                    self._compiled.run(phases, accumulate, threads, first, i)
                    self._call(i)
                    first = i + 1
            self._compiled.run(phases, accumulate, threads, first, last)
        finally:
            self._backend.computed += not self._computing.isdisjoint(phases)
        self._squares.after(self._backend.computed)
        warn_of_refusal()

    def _call(self, i: int) -> None:
        start = time.perf_counter_ns()
        self._functions[i]()
        calls, spent = self._called[i]
        self._called[i] = calls + 1, spent + time.perf_counter_ns() - start

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch since the program was compiled."""
        return [self._called.get(i, each) for i, each in enumerate(self._compiled.times())]

    def notes(self) -> Mapping[str, int]:
        """Return for how long kernels had fewer threads than their work pays (thread_count.pyx)."""
        return {"on fewer threads": self._compiled.short_handed()}


class CPU(HostBackend):
    """Kernels of toynn._kernels, run by a compiled program."""

    name = "cpu"

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads
        self.computed = 0  # how often programs have computed parameter gradients
        self.prepack, self._prepacks = "never", Prepacks()
        spread_memory(self.threads())

    def threads(self) -> int:
        """Return how many threads a run may use now."""
        return get_num_threads(self.n_threads)

    def scratch(self, launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
        """Return the scratch bytes of the kernel that needs the most, plus those of the squares."""
        return self._most(launches) + Squares(launches).nbytes

    def _most(self, launches: Sequence[Launch]) -> int:
        threads = self.threads()
        different = {
            (each.kernel, each.flops, each.nbytes, each.limit, *each.sizes.values()): each
            for each in launches
        }
        most = (_scratch(launch, threads) for launch in different.values())
        return aligned(max(most, default=0))

    def prepacked_nbytes(self, launches: Sequence[Launch] = (), prepack: str = "never") -> int:
        """Return the bytes of all prepacked weights, and of those that these launches would add."""
        return self._prepacks.nbytes + self._prepacks.missing(launches, prepack)

    def seconds(self, launches: Sequence[Launch], prepack: str) -> float:
        """Estimate the seconds of a run on one thread, of them those of packing."""
        return super().seconds(launches, prepack) + self._prepacks.seconds_left(launches, prepack)

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        undo_log: UndoLog | None = None,
    ) -> Program:
        """Turn launches into a program: resolve addresses, choose threads by the work."""

        def address(place: Place | None) -> int:
            if place is None:
                return 0
            buffer = buffers[place.buffer]
            assert isinstance(buffer, HostBuffer)
            return buffer.address + place.offset

        workspace = HostBuffer.zeros(self._most(launches))
        prepacked, squares = self._prepacks.of(launches, self.prepack, buffers), Squares(launches)
        kept = {i: each.address for i, each in prepacked.items()}
        kept |= squares.kept(launches, buffers)
        held = [workspace, *buffers.values(), *prepacked.values(), squares]
        program = CompiledProgram(len(launches), workspace.address, held)
        functions, threads = {}, self.threads()
        for i, launch in enumerate(launches):
            if launch.function:
                functions[i] = partial(launch.function.run, _view(launch, buffers))
                program.skip(launch.kernel)
                continue
            entry = _entry(launch)
            names = entry.signature
            limit = launch.limit
            program.append(
                launch.phase,
                entry.capsule,
                [address(launch.tensors[name]) for name in names.tensors],
                tuple(launch.sizes[name] for name in names.sizes),
                tuple(launch.options[name] for name in names.options),
                int(launch.accumulate),
                _worth(launch, threads),
                _seconds(launch),
                kept.get(i, 0),
                launch.kernel,
                launch.nbytes,
            )
            if limit is not None:
                place, size = address(limit.count), names.sizes.index(limit.size)
                program.limit(place, size, limit.first, limit.rows)
        computing = frozenset(
            launch.phase for launch in launches if launch.accumulate is not Accumulate.NEVER
        )
        each = list(dict.fromkeys(prepacked.values()))
        letters = "".join(launch.phase for launch in launches)
        parts = (workspace, each, squares, letters, computing, functions)
        return CPUProgram(self, program, *parts)

    def feed(self, inputs: Sequence[FeedInput]) -> Feed | None:
        """Return a compiled feed; None if an input has more than two axes."""
        if any(len(each.shape) > 2 for each in inputs):
            return None
        slots, kept = [], []
        for each in inputs:
            assert isinstance(each.buffer, HostBuffer)
            kept.append(each.buffer)
            address, whole = each.buffer.address + each.offset, each.dtype == "i32"
            slots.append((address, each.shape, whole, each.size, each.ignorable))
        return CompiledFeed(slots, kept)

    def multiplies_in(self) -> dict[str, str]:
        """Return the arithmetic of products in each precision on this CPU."""
        return multiplies_in()

    def automatic_precision(self) -> tuple[str, str]:
        """Return medium if this CPU multiplies bfloat16 faster than float32, else highest."""
        return automatic()


def _view(launch: Launch, buffers: Mapping[str, Buffer]) -> View:
    """Return a function that gives the tensors of a launch as arrays, by their names."""

    def view(name: str, layout: Layout) -> NDArray[Any]:
        place = launch.tensors[name]
        assert place is not None
        buffer = buffers[place.buffer]
        assert isinstance(buffer, HostBuffer)
        return buffer.view(place.offset, layout.shape, ELEMENTS[layout.dtype])

    return view


def _seconds(launch: Launch) -> float:
    return seconds(launch.flops, launch.nbytes, dequantized(launch.sizes))


def _worth(launch: Launch, threads: int) -> int:
    return min(threads, worth(_seconds(launch)))


def _scratch(launch: Launch, threads: int) -> int:
    if launch.function:
        return 0
    sizes = tuple(launch.sizes.items())
    return _scratch_of(launch.kernel, sizes, _worth(launch, threads), launch.limit)


@lru_cache(4096)
def _scratch_of(
    kernel: str, sizes: tuple[tuple[str, int], ...], n_threads: int, limit: RowLimit | None
) -> int:
    """Return the bytes that a kernel needs for all its rows, or for any smaller number of rows."""
    fewer = () if limit is None else (limit.size, limit.rows)  # may need more, as they are cut
    return kernels.find(kernel).workspace(dict(sizes), n_threads, *fewer)


def _entry(launch: Launch) -> Entry:
    """Return the kernel of a launch. Raises ValueError if the launch has other names than it."""
    entry = kernels.find(launch.kernel)
    what = f"the kernel {launch.kernel}"
    entry.signature.check(what, launch.tensors, launch.sizes, launch.options)
    return entry


create = CPU
