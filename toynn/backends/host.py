"""Memory of this process as a buffer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn.backends.protocol import ALIGNMENT, ELEMENTS
from toynn.numerics.dtypes import DTYPES

__all__ = ["HostBuffer", "dequantized"]


def dequantized(raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values of a quantized tensor from the bytes of its blocks."""
    values = np.empty(shape, np.float32)
    kernels.quants.dequantize(values.reshape(-1), raw, DTYPES[dtype].ggml)
    return values


class HostBuffer:
    """Bytes of this process. ``zeros`` gives zeroed bytes, aligned to a cache line.

    NumPy gets zeroed memory from the operating system: a page costs nothing until it is touched,
    and the kernel may use huge pages.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._bytes = memory
        self.changes = 0  # how often the host changed bytes; runs of programs do not count

    @classmethod
    def zeros(cls, nbytes: int) -> "HostBuffer":
        """Return a buffer of zeros."""
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

    def upload(self, offset: int, array: NDArray[Any]) -> None:
        """Copy an array to the bytes from ``offset`` on."""
        self.view(offset, array.shape, array.dtype)[...] = array
        self.changes += 1

    def download(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return a copy of what is stored there."""
        return self.view(offset, shape, ELEMENTS[dtype]).copy()

    def fill(self, offset: int, nbytes: int) -> None:
        """Fill bytes with zeros."""
        self.view(offset, (nbytes,), ELEMENTS["u8"]).fill(0)
        self.changes += 1

    def view(
        self,
        offset: int,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        strides: Sequence[int] | None = None,
    ) -> NDArray[Any]:
        """Return an array over part of the buffer, for backends that compute in it.

        Raises ValueError if that part is not within the buffer.
        """
        try:
            if offset < 0:
                raise ValueError("in front of it")
            return np.ndarray(shape, dtype, self._bytes, offset, strides)
        except (TypeError, ValueError) as error:  # NumPy raises either
            where = f"{tuple(shape)} of {dtype} at byte {offset}"
            raise ValueError(f"{where} is not within {self.nbytes} bytes") from error
