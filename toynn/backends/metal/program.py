"""From launches to dispatches: bind each tensor, write the arguments, choose the grid.

One buffer of the program stores the arguments of all launches. Each launch has two structs: one for
the first micro-batch and one for later ones. If the device itself counts the valid rows, a dispatch
before the kernel writes their number into the structs (program.metal).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toynn._kernels.base.signature import Signature
from toynn.backends.metal import _bridge
from toynn.backends.metal.arguments import entries, offset, pack
from toynn.backends.metal.device import MetalBuffer, MetalDevice
from toynn.backends.metal.grids import SCRATCH, TYPES, Dispatch, dispatches_of
from toynn.backends.metal.sources import has
from toynn.backends.metal.undo_log import MetalUndoLog
from toynn.backends.protocol import Accumulate, Launch, UndoLog, aligned
from toynn.errors import BackendError, BackendUnavailable
from toynn.numerics import dtypes

#: Bytes from one struct of arguments to the next: Metal's alignment of constant buffers.
SLOT = 256
UPDATE = "U"  # the phase that overwrites weights
#: Estimated seconds of a dispatch, an operation and a byte: they divide a run's time.
DISPATCH, FLOP, BYTE = 2e-6, 1e-12, 1e-11


class Prepared(NamedTuple):
    """A launch, and how its kernel runs on this device."""

    op: str
    launch: Launch
    signature: Signature
    sizes: dict[str, int]  # sizes, and has_X of tensors X that may be missing
    dispatches: list[Dispatch]
    scratch: int


def _prepared(launch: Launch) -> Prepared:
    op, _, entry = launch.kernel.partition(".")
    if launch.function:
        raise BackendUnavailable(
            f"backend 'metal': {launch.kernel} is a function of NumPy: use the backend cpu or "
            "reference, or write a kernel (docs/tutorial-op.md)"
        )
    signature = entries(op).get(entry)
    if signature is None or not has(op):
        raise BackendUnavailable(f"backend 'metal': has no kernel {launch.kernel}")
    if launch.sizes.get("type", 0) not in TYPES:
        kind = next(n for n, t in dtypes.DTYPES.items() if t.ggml == launch.sizes["type"])
        raise BackendUnavailable(
            f"backend 'metal': {launch.kernel} does not read weights of type {kind}; use a base "
            "of another type, or --backend cpu"
        )
    signature.check(f"the kernel {launch.kernel}", launch.tensors, launch.sizes, launch.options)
    sizes = {**launch.sizes, **signature.there(launch.tensors)}
    dispatches = dispatches_of(launch.kernel, signature, sizes)
    need = SCRATCH[launch.kernel](sizes) if launch.kernel in SCRATCH else 0
    return Prepared(op, launch, signature, sizes, dispatches, aligned(need))


def scratch(launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
    """Return the bytes of own memory that a program of these launches has.

    Raises BackendUnavailable for a missing kernel, or a type that it cannot read.
    """
    prepared = [_prepared(launch) for launch in launches]
    return sum(_own(prepared, undo_log))


def _own(prepared: Sequence[Prepared], undo_log: UndoLog | None) -> tuple[int, int]:
    """Return the bytes of arguments, and of the scratch memory that all launches share."""
    slots = 1 + sum(2 + (one.launch.limit is not None) for one in prepared)
    slots += MetalUndoLog.structs(undo_log)
    return SLOT * slots, max((one.scratch for one in prepared), default=0)


def _structs(one: Prepared) -> Iterator[bytes]:
    """Return the arguments in the first micro-batch, and in later ones."""
    policy = one.launch.accumulate
    for later in (0, 1):
        adds = later if policy is Accumulate.MICRO_BATCH else int(policy is Accumulate.ALWAYS)
        try:
            yield pack(one.signature, {**one.sizes, **one.launch.options, "accumulate": adds})
        except OverflowError as error:
            raise BackendError(f"backend 'metal': {one.launch.kernel}: {error}") from error


class MetalProgram:
    """Dispatches, the memory of their arguments, and the time that runs took."""

    def __init__(
        self,
        device: MetalDevice,
        launches: Sequence[Launch],
        buffers: Mapping[str, MetalBuffer],
        undo_log: UndoLog | None = None,
    ) -> None:
        self._device, self._buffers = device, buffers
        prepared = [_prepared(launch) for launch in launches]
        arguments, intermediate = _own(prepared, undo_log)
        self._arguments = device.allocate(arguments)
        self._scratch = device.allocate(intermediate)
        self._next = SLOT  # the first slot is bound for missing tensors
        self.scratch = arguments + intermediate
        count = sum(len(one.dispatches) + (one.launch.limit is not None) for one in prepared)
        count += MetalUndoLog.structs(undo_log)
        self._dispatches = _bridge.Dispatches(device.bridge, count)
        self._undo_log: MetalUndoLog | None = None
        for one in prepared:
            if undo_log is not None and self._undo_log is None and one.launch.phase == UPDATE:
                self._undo_log = MetalUndoLog(
                    device, undo_log, buffers, self._arguments, self._write
                )
                self._undo_log.append(self._dispatches, UPDATE)
            self._append(one)
        self._launches = list(launches)
        self._runs: dict[str, tuple[int, float]] = {}  # by phases: runs and their seconds
        self._updating = False  # a run in flight writes the undo log

    def _append(self, one: Prepared) -> None:
        launch = one.launch
        first, later = (self._write(data) for data in _structs(one))
        if launch.limit is not None:
            self._limit(one, first, later)
        places = [launch.tensors[name] for name in one.signature.tensors]
        # In the order of the kernel's parameters (arguments.buffers).
        memories = [self._memory(place.buffer if place else None) for place in places]
        offsets = [place.offset if place else 0 for place in places]
        for i, memory in enumerate(memories):
            if offsets[i] >= memory.nbytes:  # an empty tensor at the end
                memories[i], offsets[i] = self._arguments.memory, 0
        memories += [self._arguments.memory, self._scratch.memory]
        if launch.kernel not in SCRATCH:
            memories.pop()
        ends = ([first, 0], [later, 0])
        n = len(memories)
        for each in one.dispatches:
            pipeline = self._device.pipeline(one.op, each.function)
            threads = int(np.prod(each.threads))
            if threads > pipeline.threads:
                raise BackendError(
                    f"backend 'metal': {each.function} needs {threads} threads in a group; this "
                    f"device allows {pipeline.threads}; use --backend cpu"
                )
            in_first, in_later = ([*offsets, *end][:n] for end in ends)
            self._dispatches.append(
                launch.phase, pipeline, memories, in_first, in_later, each.groups, each.threads
            )

    def _limit(self, one: Prepared, first: int, later: int) -> None:
        """Add the dispatch that writes the number of valid rows into the arguments."""
        limit = one.launch.limit
        assert limit is not None
        word = offset(one.signature, limit.size) // 4
        per_row = one.launch.sizes[limit.size] // limit.rows
        numbers = np.array([word, per_row, limit.first, limit.rows], np.uint32)
        at = self._write(numbers.tobytes())
        arguments, count = self._arguments.memory, self._memory(limit.count.buffer)
        offsets = [first, later, limit.count.offset, at]
        self._dispatches.append(
            one.launch.phase,
            self._device.pipeline("program", "program_limit"),
            [arguments, arguments, count, arguments],
            offsets,
            offsets,
            (1, 1, 1),
            (1, 1, 1),
        )

    def _memory(self, name: str | None) -> _bridge.Memory:
        return (self._arguments if name is None else self._buffers[name]).memory

    def _write(self, data: bytes) -> int:
        """Write a struct into the next slot; return its offset."""
        assert len(data) <= SLOT
        at, self._next = self._next, self._next + SLOT
        self._arguments.upload(at, np.frombuffer(data, np.uint8))
        return at

    # -- Runs ----------------------------------------------------------------------------------

    def run(self, phases: str, accumulate: bool) -> None:
        """Submit the launches of these phases, as one command buffer."""
        undo_log = self._undo_log if UPDATE in phases else None
        if undo_log is not None and self._updating:
            self._device.wait()  # there is one undo log

        def done(seconds: float | None) -> None:
            if undo_log is not None:
                undo_log.close(undo=seconds is None)
                self._updating = False
            if seconds is not None:
                runs, spent = self._runs.get(phases, (0, 0.0))
                self._runs[phases] = runs + 1, spent + seconds

        self._device.commit(self._dispatches, phases, accumulate, done)
        self._updating |= undo_log is not None

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch: a share of each run's time, by estimated work."""
        self._device.wait()
        calls, spent = np.zeros(len(self._launches), int), np.zeros(len(self._launches))
        work = [DISPATCH + FLOP * each.flops + BYTE * each.nbytes for each in self._launches]
        for phases, (runs, seconds) in self._runs.items():
            ran = np.array([each.phase in phases for each in self._launches])
            share = np.where(ran, work, 0)
            calls += runs * ran
            spent += seconds * 1e9 * share / max(share.sum(), DISPATCH)
        return [(int(n), int(ns)) for n, ns in zip(calls, spent, strict=True)]

    def notes(self) -> Mapping[str, int]:
        """Return how many nanoseconds of ``times`` are estimated shares of runs: all of them."""
        return {"shared out by work": sum(spent for _, spent in self.times())}
