"""The Metal device as a backend: the protocol that a session uses."""

import logging
import mmap
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from toynn.backends.metal.device import MetalBuffer, MetalDevice
from toynn.backends.metal.program import MetalProgram, scratch
from toynn.backends.protocol import Backend, Buffer, Launch, Program, UndoLog


class Metal(Backend):
    """Runs the shaders of this folder, in the order of the tape, on the default device."""

    name = "metal"
    undo_logs = True

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads  # not used: the device has its own threads
        self.device = MetalDevice()
        self.limits = self.device.limits  # the device's name, abilities and limits
        self.copied = 0  # bytes of wrapped memory that could not be shared

    def allocate(self, nbytes: int) -> MetalBuffer:
        """Return a zero-filled buffer. Raises MemoryError, and BackendError for one too long."""
        return self.device.allocate(nbytes)

    def wrap(self, array: NDArray[np.uint8]) -> MetalBuffer:
        """Return the memory of an array as a buffer: its own pages, or a copy, which is logged.

        It is shared if it begins at a page, together with the rest of its last page.
        """
        if array.nbytes and array.ctypes.data % mmap.PAGESIZE == 0:
            pages = -(-array.nbytes // mmap.PAGESIZE)
            return self.device.share(array, pages * mmap.PAGESIZE)
        log = logging.getLogger(__name__)
        log.info("%d bytes are copied: they do not begin at a page", array.nbytes)
        self.copied += array.nbytes
        buffer = self.allocate(array.nbytes)
        buffer.upload(0, array)
        return buffer

    def scratch(self, launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
        """Return the bytes of arguments and intermediate results."""
        return scratch(launches, undo_log)

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        undo_log: UndoLog | None = None,
    ) -> Program:
        """Turn launches into a list of dispatches; shaders are compiled when first needed."""
        held = {name: b for name, b in buffers.items() if isinstance(b, MetalBuffer)}
        return MetalProgram(self.device, launches, held, undo_log)

    def wait(self) -> None:
        """Return when all runs are done. Raises BackendError with the first failed run's error."""
        self.device.wait()

    def automatic_precision(self) -> tuple[str, str]:
        """Return highest: whether medium is faster on Apple's devices has not been measured yet."""
        return "highest", (
            f"whether bfloat16 is faster than float32 on {self.limits['name']} was not measured "
            "(toynn selftest --backend metal does)"
        )
