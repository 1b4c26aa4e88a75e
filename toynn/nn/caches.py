"""What a generation keeps of a sequence from one run to the next: keys, values and states."""

from dataclasses import dataclass, field

from toynn import ops
from toynn.graph.tape import Tensor
from toynn.session import Session


@dataclass(frozen=True)
class Caches:
    """Keys, values and states by name, shared by the tapes of one session.

    Attributes
    ----------
    past
        Rows of each sequence that are cached, (B,) of i32.
    counts
        Rows of each sequence that this run adds, (B,) of i32; the rest of the run is padding.
    rows
        Capacity of the cache in rows.
    places
        How many sequences the caches have room for; the tape's B are those from ``first`` on.
    label
        Prefix of the tensors' names, unique to a number of places and a capacity.
    tensors
        The tensors by name. The first tape that asks for a name declares the tensor.
    """

    session: Session
    past: Tensor
    counts: Tensor
    rows: int
    places: int
    first: int
    label: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def of(
        self, name: str, batch: int, n_kv_heads: int, d_head: int, d_value: int | None
    ) -> ops.KVCache:
        """Return the cache of an attention; without ``d_value``, values are columns of keys."""
        shapes = ops.KVCache.shapes(batch, n_kv_heads, self.rows, d_head, d_value or 0)
        keys = self._tensor(f"{name}keys", shapes[0])
        values = None if d_value is None else self._tensor(f"{name}values", shapes[1])
        return ops.KVCache(keys, values, self.past)

    def ring(self, name: str, batch: int, width: int) -> Tensor:
        """Return the last rows (B, RING, C) of a convolution's input."""
        return self._tensor(f"{name}ring", (batch, ops.RING, width))

    def state(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the state of a delta rule or a state space, (B, V, D, E)."""
        return self._tensor(f"{name}state", shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.tensors:
            whole = (self.places, *shape[1:])
            self.tensors[name] = self.session.persistent(self.label + name, whole)
        return self.tensors[name].rows(self.first, self.first + shape[0])
