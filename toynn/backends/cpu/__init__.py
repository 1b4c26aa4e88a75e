"""The CPU backend: aligned memory, and programs of Cython kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn.backends.cpu import threads
from toynn.backends.cpu.program import CompiledProgram
from toynn.backends.protocol import ALIGNMENT, Backend, Buffer, Launch, Place, Program

__all__ = ["CPU", "CPUBuffer"]

_DTYPES = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}


class CPUBuffer:
    """Bytes of this process: fresh ones are zero and aligned to a cache line.

    NumPy takes them zeroed from the operating system, so that a page costs nothing until it is
    touched, and asks for huge pages where the kernel offers them.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._bytes = memory

    @classmethod
    def zeros(cls, nbytes: int) -> "CPUBuffer":
        """Return fresh memory."""
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return cls(raw[start : start + nbytes])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._bytes.nbytes

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self._bytes.ctypes.data)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return an array over part of the buffer, without a copy."""
        kind = _DTYPES[dtype]
        count = int(np.prod(shape, dtype=np.int64))
        return self._bytes[offset : offset + count * kind.itemsize].view(kind).reshape(shape)


class CPU(Backend):
    """Kernels of toynn._kernels, run by a compiled program."""

    name = "cpu"

    def max_threads(self) -> int:
        """Return how many threads a run may use now."""
        return threads.get_num_threads()

    def workspace(self, launch: Launch, n_threads: int) -> int:
        """Return the bytes of scratch memory that a launch needs."""
        op, _, entry = launch.kernel.partition(".")
        need = getattr(getattr(kernels, op), "workspace", None)
        if need is None:
            return 0
        return int(need(entry, *launch.sizes, n_threads=self._threads(launch, n_threads)))

    def allocate(self, nbytes: int) -> CPUBuffer:
        """Return a zero-filled buffer."""
        return CPUBuffer.zeros(nbytes)

    def wrap(self, array: NDArray[Any]) -> CPUBuffer:
        """Return the memory of a C-contiguous array as a buffer, without a copy."""
        return CPUBuffer(array.reshape(-1).view(np.uint8))

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        workspace: Place,
        n_threads: int,
    ) -> Program:
        """Turn launches into a program: addresses resolved, threads chosen by the work."""

        def address(place: Place | None) -> int:
            if place is None:
                return 0
            buffer = buffers[place.buffer]
            assert isinstance(buffer, CPUBuffer)
            return buffer.address + place.offset

        program = CompiledProgram(len(launches), address(workspace), list(buffers.values()))
        for launch in launches:
            op, _, entry = launch.kernel.partition(".")
            program.append(
                launch.segment,
                getattr(kernels, op).entries[entry],
                [address(place) for place in launch.tensors],
                launch.sizes,
                launch.options,
                int(launch.accumulate),
                self._threads(launch, n_threads),
                threads.seconds(launch.flops, launch.nbytes),
            )
        return program

    @staticmethod
    def _threads(launch: Launch, n_threads: int) -> int:
        return min(n_threads, threads.worth(threads.seconds(launch.flops, launch.nbytes)))
