"""Where the tensors that outlive a tape are stored: weights, moments, gradients, scalars.

Each region is one buffer. A tensor gets its place in a region when it is declared, and its memory
when the region is allocated. A persistent tensor has its own region, allocated at declaration. A
mapped tensor stays in the caller's memory; a whole mapped file is one buffer.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.backends.host import dequantized
from toynn.backends.protocol import ELEMENTS, Backend, Buffer, Place, aligned
from toynn.errors import LifecycleError
from toynn.graph.tape import Role, Tensor
from toynn.numerics import dtypes

REGIONS = {
    Role.PARAMETER: "weights",
    Role.CONSTANT: "weights",
    Role.MOMENT: "moments",
    Role.GRADIENT: "gradients",
    Role.STATE: "state",
    Role.PERSISTENT: "persistent",
}


class Storage:
    """Regions of a backend's memory, and the places of tensors in them."""

    def __init__(self, backend: Backend, owner: Callable[[], Any] | None = None) -> None:
        self._backend, self._owner = backend, owner
        self.buffers: dict[str, Buffer] = {}
        self.nbytes = dict.fromkeys(REGIONS.values(), 0)
        self.places: dict[Tensor, Place] = {}
        self.held: dict[Tensor, tuple[Buffer, int]] = {}  # tensors with memory
        self.mapped: set[Tensor] = set()
        self._memories: list[
            NDArray[np.uint8]
        ] = []  # of callers; kept alive, since buffers are named by address

    def declare(self, name: str, shape: tuple[int, ...], role: Role, dtype: str = "f32") -> Tensor:
        """Return a new tensor with the next place in its region.

        Raises LifecycleError once its region is allocated.
        """
        tensor, region = Tensor(name, shape, role, dtype, owner=self._owner), REGIONS[role]
        if region in self.buffers:
            raise LifecycleError(f"{name}: too late, the {region} of this session are allocated")
        self.places[tensor] = Place(region, self.nbytes[region])
        self.nbytes[region] += aligned(tensor.nbytes)
        return tensor

    def whole(self, role: Role) -> Tensor:
        """Return a tensor that covers a region, including the zeros between its tensors."""
        region = REGIONS[role]
        tensor = Tensor(region, (self.nbytes[region] // dtypes.DTYPES["f32"].nbytes,), role)
        self.places[tensor] = Place(region, 0)
        return tensor

    def map(self, name: str, array: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> Tensor:
        """Return a frozen tensor in the caller's array.

        The backend wraps the whole memory that the array is a part of, once.
        """
        memory = _all_of(array)
        buffer = f"mapped {memory.ctypes.data:#x}"
        if buffer not in self.buffers:
            self.buffers[buffer] = self._backend.wrap(memory)
            self._memories.append(memory)
        offset = array.ctypes.data - memory.ctypes.data
        tensor = Tensor(name, shape, Role.CONSTANT, dtype, owner=self._owner)
        self.places[tensor] = Place(buffer, offset)
        self.hold(tensor, self.buffers[buffer], offset)
        self.mapped.add(tensor)
        return tensor

    def keep(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a persistent tensor of zeros in its own memory."""
        tensor = Tensor(name, shape, Role.PERSISTENT, owner=self._owner)
        buffer = self._backend.allocate(tensor.nbytes)
        self.places[tensor] = Place(f"persistent {name}", 0)
        self.buffers[f"persistent {name}"] = buffer
        self.nbytes[REGIONS[Role.PERSISTENT]] += tensor.nbytes
        self.hold(tensor, buffer, 0)
        return tensor

    def release(self, tensor: Tensor) -> None:
        """Free a persistent tensor and its memory."""
        del self.held[tensor]
        del self.buffers[self.places.pop(tensor).buffer]
        self.nbytes[REGIONS[Role.PERSISTENT]] -= tensor.nbytes

    def allocate(self, *roles: Role) -> None:
        """Allocate the regions of these roles that have no memory yet; all of them or none."""
        wanted = {REGIONS[role] for role in roles} - self.buffers.keys()
        new = {
            region: self._backend.allocate(self.nbytes[region])
            for region in wanted
            if self.nbytes[region]
        }
        self.buffers.update(new)
        for tensor, place in self.places.items():
            if place.buffer in new:
                self.hold(tensor, self.buffers[place.buffer], place.offset)

    def hold(self, tensor: Tensor, buffer: Buffer, offset: int) -> None:
        """Record where a tensor's memory is."""
        self.held[tensor] = buffer, offset

    def write(self, tensor: Tensor, values: NDArray[Any]) -> None:
        """Copy values, or the bytes of quantized blocks, into a tensor's memory."""
        buffer, offset = self.held[tensor]
        kind = ELEMENTS.get(tensor.dtype, ELEMENTS["u8"])
        if values.dtype != kind or not values.flags.c_contiguous:
            values = np.ascontiguousarray(values, kind)
        buffer.upload(offset, values)

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor's values, dequantized to float32."""
        return values_at(tensor, *self.held[tensor])

    def copy(self, tensor: Tensor, source: int, target: int, count: int) -> None:
        """Copy ``count`` elements of a tensor of floats to another of its elements."""
        buffer, offset = self.held[tensor]
        size = ELEMENTS["f32"].itemsize
        buffer.upload(
            offset + size * target, buffer.download(offset + size * source, (count,), "f32")
        )

    def blocks(self, role: Role, count: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield a region's float32 elements as (first index, copy of at most ``count`` values)."""
        region = REGIONS[role]
        size = ELEMENTS["f32"].itemsize
        whole = self.nbytes[region] // size
        for start in range(0, whole, count):
            shape = (min(count, whole - start),)
            yield start, self.buffers[region].download(start * size, shape, "f32")

    def put(self, role: Role, start: int, values: NDArray[np.float32]) -> None:
        """Copy a block of ``blocks`` back."""
        self.buffers[REGIONS[role]].upload(start * ELEMENTS["f32"].itemsize, values)

    def clear(self, tensors: Iterable[Tensor]) -> None:
        """Fill the memory of tensors with zeros."""
        for tensor in tensors:
            buffer, offset = self.held[tensor]
            buffer.fill(offset, tensor.nbytes)

    def free(self) -> None:
        """Free all memory."""
        self.held.clear()
        self.buffers.clear()
        self._memories.clear()


def values_at(tensor: Tensor, buffer: Buffer, offset: int) -> NDArray[Any]:
    """Return a copy of a tensor's values from where it is stored, dequantized to float32."""
    if tensor.dtype in ELEMENTS:
        return buffer.download(offset, tensor.shape, tensor.dtype)
    raw = buffer.download(offset, (tensor.nbytes,), "u8")
    return dequantized(raw, tensor.dtype, tensor.shape)


def _all_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of the memory behind an array: a mapped file, a larger array, or itself."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and whole.base is not None:
        whole = whole.base
    try:
        memory: NDArray[np.uint8] = (
            whole.reshape(-1).view(np.uint8)
            if isinstance(whole, np.ndarray) and whole.flags.c_contiguous
            else np.frombuffer(whole, np.uint8)
        )
    except (TypeError, ValueError, BufferError):  # it does not expose all of its memory
        return array.reshape(-1).view(np.uint8)
    start, first = memory.ctypes.data, array.ctypes.data
    inside = start <= first and first + array.nbytes <= start + memory.nbytes
    return memory if inside else array.reshape(-1).view(np.uint8)
