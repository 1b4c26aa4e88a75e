"""The device as a backend: its memory, and runs that go on until somebody looks."""

import logging
import mmap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.backends.host import HostBuffer
from toynn.backends.metal import _bridge
from toynn.backends.metal.library import source
from toynn.backends.metal.program import MetalProgram, scratch
from toynn.backends.protocol import Backend, Buffer, Launch, Program, aligned
from toynn.errors import BackendError

__all__ = ["Metal", "MetalBuffer"]

#: Runs on their way at once; a device takes no more than 64 command buffers.
MOST_RUNS = 16


class MetalBuffer:
    """Memory that the device and the CPU share; the CPU touches it when no run is on its way."""

    def __init__(self, backend: "Metal", memory: _bridge.Memory) -> None:
        self._backend, self.memory = backend, memory
        self._host = HostBuffer(np.frombuffer(memoryview(memory), np.uint8))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._host.nbytes

    def upload(self, offset: int, array: NDArray[Any]) -> None:
        """Copy an array to the bytes from ``offset`` on."""
        self._backend.wait()
        self._host.upload(offset, array)

    def download(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return a copy of what lies there."""
        self._backend.wait()
        return self._host.download(offset, shape, dtype)

    def fill(self, offset: int, nbytes: int) -> None:
        """Fill bytes with zeros."""
        self._backend.wait()
        self._host.fill(offset, nbytes)


class Metal(Backend):
    """Shaders of this folder, in the order of the tape, on the default device."""

    name = "metal"

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads  # a wish that the device has no use for
        self.device = _bridge.Device()
        self.limits: dict[str, Any] = self.device.limits()
        self.copied = 0  # bytes of wrapped memory that could not be shared
        self._libraries: dict[str, _bridge.Library] = {}
        self._pipelines: dict[str, _bridge.Pipeline] = {}
        self._flying: list[tuple[MetalProgram, str, _bridge.Commands]] = []

    # -- Memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> MetalBuffer:
        """Return a zero-filled buffer. Raises MemoryError, and BackendError for one too long."""
        nbytes = max(aligned(nbytes), 64)
        self._check_length(nbytes)
        return MetalBuffer(self, _bridge.Memory(self.device, nbytes))

    def wrap(self, array: NDArray[np.uint8]) -> MetalBuffer:
        """Return the memory of an array as a buffer: its own pages, or a copy, which is logged.

        It can be shared if it begins with a page; the rest of its last page goes along.
        """
        start, nbytes = int(array.ctypes.data), array.nbytes
        self._check_length(nbytes)
        if nbytes and start % mmap.PAGESIZE == 0:
            pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            return MetalBuffer(self, _bridge.Memory(self.device, pages, start, array))
        logging.getLogger(__name__).info("%d bytes are copied: no page begins there", nbytes)
        self.copied += nbytes
        buffer = self.allocate(nbytes)
        buffer.upload(0, array)
        return buffer

    def _check_length(self, nbytes: int) -> None:
        most = self.limits["max_buffer_nbytes"]
        if nbytes > most:
            raise BackendError(
                f"backend 'metal': a buffer of {nbytes} bytes, and {self.limits['name']} has at "
                f'most {most} in one; use a smaller batch or model, or backend="cpu"'
            )

    # -- Programs ------------------------------------------------------------------------------

    def scratch(self, launches: Sequence[Launch]) -> int:
        """Return the bytes of arguments and intermediate results."""
        return scratch(launches)

    def compile(self, launches: Sequence[Launch], buffers: Mapping[str, Buffer]) -> Program:
        """Turn launches into a list of dispatches; shaders are compiled when first needed."""
        own = {name: b for name, b in buffers.items() if isinstance(b, MetalBuffer)}
        return MetalProgram(self, launches, own)

    def pipeline(self, op: str, function: str) -> _bridge.Pipeline:
        """Return a function of an op's library. Raises BackendError if it does not compile."""
        if function not in self._pipelines:
            if op not in self._libraries:
                text = source(op, self.limits["simdgroups"])
                self._libraries[op] = _bridge.Library(self.device, text)
            self._pipelines[function] = _bridge.Pipeline(self._libraries[op], function)
        return self._pipelines[function]

    # -- Runs ----------------------------------------------------------------------------------

    def commit(self, program: MetalProgram, segments: str, accumulate: bool) -> None:
        """Submit the dispatches of these segments at once; do not wait for them."""
        if len(self._flying) == MOST_RUNS:
            self.wait()
        commands = program.dispatches.commit(segments, accumulate)
        self._flying.append((program, segments, commands))

    def wait(self) -> None:
        """Return when all runs are done. Raises BackendError with what the first bad one says."""
        flying, self._flying = self._flying, []
        errors = []
        for program, segments, commands in flying:
            try:
                program.took(segments, commands.wait())
            except BackendError as error:
                errors.append(partial(program.failed, error))
        if errors:
            raise errors[0]()
