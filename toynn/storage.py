"""Where the tensors that outlive a tape lie: weights, moments, gradients, scalars.

Each region is one buffer. A tensor gets its place in a region when it is declared, and its view (a
NumPy array over that place) when the region is allocated. A persistent tensor is a region of its
own, allocated when it is declared.
"""

from typing import Any

from numpy.typing import NDArray

from toynn import dtypes
from toynn.backends.protocol import Backend, Buffer, Place, aligned
from toynn.errors import LifecycleError
from toynn.formats import quants
from toynn.tape import Role, Tensor

__all__ = ["REGIONS", "Storage", "expanded"]

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

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.buffers: dict[str, Buffer] = {}
        self.nbytes = dict.fromkeys(REGIONS.values(), 0)
        self.places: dict[Tensor, Place] = {}
        self.views: dict[Tensor, NDArray[Any]] = {}
        self.mapped: set[Tensor] = set()

    def declare(self, name: str, shape: tuple[int, ...], role: Role) -> Tensor:
        """Return a new tensor with a place behind the last one of its region."""
        tensor, region = Tensor(name, shape, role), REGIONS[role]
        if region in self.buffers:
            raise LifecycleError(f"{name}: too late, the {region} of this session are allocated")
        self.places[tensor] = Place(region, self.nbytes[region])
        self.nbytes[region] += aligned(tensor.nbytes)
        return tensor

    def whole(self, role: Role) -> Tensor:
        """Return a tensor that is all of a region, the zeros between its tensors included."""
        region = REGIONS[role]
        tensor = Tensor(region, (self.nbytes[region] // dtypes.DTYPES["f32"].nbytes,), role)
        self.places[tensor] = Place(region, 0)
        return tensor

    def map(self, name: str, array: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> Tensor:
        """Return a frozen tensor that lies in the caller's array."""
        tensor = Tensor(name, shape, Role.CONSTANT, dtype)
        self.places[tensor] = Place(f"mapped {name}", 0)
        self.buffers[f"mapped {name}"] = self._backend.wrap(array)
        self.views[tensor] = array
        self.mapped.add(tensor)
        return tensor

    def keep(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a persistent tensor, zeros in memory of its own."""
        tensor = Tensor(name, shape, Role.PERSISTENT)
        buffer = self._backend.allocate(tensor.nbytes)
        self.places[tensor] = Place(f"persistent {name}", 0)
        self.buffers[f"persistent {name}"] = buffer
        self.nbytes[REGIONS[Role.PERSISTENT]] += tensor.nbytes
        self.show(tensor, buffer, 0)
        return tensor

    def allocate(self, *roles: Role) -> None:
        """Bring the regions of these roles into being, those that are not there yet, or none."""
        wanted = {REGIONS[role] for role in roles} - self.buffers.keys()
        new = {
            region: self._backend.allocate(self.nbytes[region])
            for region in wanted
            if self.nbytes[region]
        }
        self.buffers.update(new)
        for tensor, place in self.places.items():
            if place.buffer in new:
                self.show(tensor, self.buffers[place.buffer], place.offset)

    def show(self, tensor: Tensor, buffer: Buffer, offset: int) -> None:
        """Give a tensor its view."""
        self.views[tensor] = buffer.view(offset, tensor.shape, tensor.dtype)

    def free(self) -> None:
        """Let go of all memory."""
        self.views.clear()
        self.buffers.clear()


def expanded(tensor: Tensor, view: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of what a tensor's view shows, blocks expanded to float32."""
    if tensor.dtype in dtypes.BLOCKS:
        return quants.dequantize(view.reshape(-1), tensor.dtype.upper(), tensor.shape)
    return view.copy()
