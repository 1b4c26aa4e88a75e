"""Memory of this process as a buffer, and functions of NumPy in place of kernels."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn._kernels.base.signature import Signature
from toynn.backends.protocol import ALIGNMENT, ELEMENTS, Backend
from toynn.errors import BackendError, ShapeError
from toynn.numerics.dtypes import DTYPES


class Layout(NamedTuple):
    """How a kernel sees a tensor: its type, its shape, and how many elements apart its rows are."""

    dtype: str
    shape: tuple[int, ...]
    row: int | None  # None: the rows are contiguous


#: Returns a tensor by name in a layout, writable; None for a tensor that is left out.
View = Callable[[str, Layout], NDArray[Any] | None]


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


class HostBackend(Backend):
    """A backend that computes in the memory of this process."""

    def allocate(self, nbytes: int) -> HostBuffer:
        """Return a zero-filled buffer."""
        return HostBuffer.zeros(nbytes)

    def wrap(self, array: NDArray[np.uint8]) -> HostBuffer:
        """Return the memory of an array as a buffer, without a copy."""
        return HostBuffer(array)

    def wait(self) -> None:
        """Do nothing: a run is done when it returns."""


@dataclass(frozen=True, eq=False)
class HostFunction:
    """A function of NumPy arrays that a program calls in place of a kernel; see ``ops.numpy``.

    ``compute`` takes the inputs of the signature, whose extents are numbers, and returns an array
    for each output. ``pure``: from the same arrays it computes the same bits.
    """

    name: str
    signature: Signature
    compute: Callable[..., Sequence[Any]]
    pure: bool

    def run(self, view: View, *_: Mapping[str, float] | bool) -> None:
        """Call the function, and copy what it returns.

        Raises ShapeError for an array of another shape. Raises BackendError if the function raises,
        or keeps an array that it got: the memory under it will have other numbers.
        """
        names = self.signature.inputs
        # Over a memoryview, so that a slice that is kept refers to the array.
        views: list[Any] = [self._view(view, name) for name in names]
        arrays = [np.asarray(memoryview(each).toreadonly()) for each in views]
        before = [sys.getrefcount(array) for array in arrays]
        try:
            results = self.compute(*arrays)
            for name, result in zip(self.signature.outputs, results, strict=True):
                target = self._view(view, name)
                if np.shape(result) != target.shape:
                    raise ShapeError(
                        f"{self.name}: {name} must have the shape {target.shape}; got "
                        f"{np.shape(result)}"
                    )
                np.copyto(target, result, casting="same_kind")
        except ShapeError:
            raise
        except Exception as error:
            raise BackendError(f"{self.name} raised {type(error).__name__}: {error}") from error
        del results, result
        after = [sys.getrefcount(array) for array in arrays]
        kept = [name for name, x, y in zip(names, before, after, strict=True) if y > x]
        if kept:
            raise BackendError(
                f"{self.name} keeps its array {kept[0]}: keep a copy, {kept[0]}.copy()"
            )

    def _view(self, view: View, name: str) -> NDArray[Any]:
        spec = self.signature[name]
        array = view(name, Layout(spec.kind, spec.shape({}), None))
        assert array is not None, name
        return array
