"""The reference backend: every kernel in float64 NumPy, one line of mathematics after the other.

It runs the same tapes, plans and sessions as the other backends, to check them and to look into
them. Between kernels tensors are float32, as the plan gives them four bytes a number. Within a
kernel all is float64, whatever ``precision`` a product asks for. It is slow, and runs on one
thread, except where NumPy uses more.
"""

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from toynn.backends.host import HostBackend, HostBuffer, dequantized
from toynn.backends.protocol import (
    ELEMENTS,
    Accumulate,
    Buffer,
    Launch,
    Place,
    Program,
    UndoLog,
)
from toynn.backends.reference.kernel import KERNELS, Array, Kernel, Layout
from toynn.errors import BackendUnavailable
from toynn.numerics import dtypes

__all__ = ["KERNELS", "Kernel", "Layout", "Reference", "create"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


class ReferenceProgram:
    """Launches and the buffers of their tensors. Raises BackendUnavailable for a missing kernel."""

    scratch = 0

    def __init__(self, launches: Sequence[Launch], buffers: Mapping[str, HostBuffer]) -> None:
        for launch in launches:
            if launch.kernel not in KERNELS and launch.function is None:
                raise BackendUnavailable(f"backend 'reference': has no kernel {launch.kernel}")
        self._launches, self._buffers = list(launches), buffers
        self._times = [(0, 0)] * len(launches)

    def run(self, phases: str, accumulate: bool) -> None:
        """Run the launches of these phases; they are done when this returns."""
        for i, launch in enumerate(self._launches):
            if launch.phase in phases:
                self.run_one(i, accumulate)

    def run_one(self, launch: int, accumulate: bool) -> None:
        """Run a launch by its number; it is done when this returns."""
        start = time.perf_counter_ns()
        self._run(self._launches[launch], accumulate)
        calls, spent = self._times[launch]
        self._times[launch] = calls + 1, spent + time.perf_counter_ns() - start

    def _run(self, launch: Launch, accumulate: bool) -> None:
        def view(name: str, layout: Layout) -> Array | None:
            place = launch.tensors[name]
            return None if place is None else self._view(place, layout)

        adds = accumulate if launch.accumulate is Accumulate.MICRO_BATCH else launch.accumulate
        sizes, limit = launch.sizes, launch.limit
        if limit is not None:
            count = self._view(limit.count, Layout("i32", (), None))
            sizes = limit.sizes(sizes, int(count))
        (launch.function or KERNELS[launch.kernel]).run(view, sizes, launch.options, bool(adds))

    def _view(self, place: Place, layout: Layout) -> Array:
        """Return a view of a tensor, or its dequantized copy."""
        buffer, (dtype, shape, row) = self._buffers[place.buffer], layout
        if dtype not in ELEMENTS:
            size = dtypes.nbytes(dtype, int(np.prod(shape)))
            raw = buffer.view(place.offset, (size,), ELEMENTS["u8"])
            return dequantized(raw, dtype, shape)
        strides = None if row is None else (4 * row, 4)
        return buffer.view(place.offset, shape, ELEMENTS[dtype], strides)

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch since the program was compiled."""
        return list(self._times)

    def notes(self) -> Mapping[str, int]:
        """Return no remarks."""
        return {}


class Reference(HostBackend):
    """Float64 NumPy between float32 tensors."""

    name = "reference"

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads

    def scratch(self, launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
        """Return 0: NumPy's own arrays are not counted."""
        return 0

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        undo_log: UndoLog | None = None,
    ) -> Program:
        """Turn launches into a program."""
        held = {name: buffer for name, buffer in buffers.items() if isinstance(buffer, HostBuffer)}
        return ReferenceProgram(launches, held)

    def automatic_precision(self) -> tuple[str, str]:
        """Return highest: all precisions are the same here."""
        return "highest", "all precisions are float64 within a kernel of the backend reference"


create = Reference
