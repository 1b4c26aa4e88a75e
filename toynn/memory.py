"""The doors of a session to its memory: what its tapes need, and what there is room for beside."""

from abc import abstractmethod

from toynn.backends.protocol import UNPACKED, Backend, Packing, Packs
from toynn.graph.lowering import CompiledTape, Lowered, lower
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape
from toynn.machine import free_memory
from toynn.reports import Memory

__all__ = ["MemoryDoors"]


class MemoryDoors:
    """What a session says of its memory, and which weights are kept packed in it."""

    tape: Tape
    backend: Backend
    pack_base: str  # see toynn.options.PACKS
    _storage: Storage
    _compiled: dict[Tape, CompiledTape]

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse a session that is closed."""

    def memory(self) -> Memory:
        """Return the bytes that the tapes recorded so far need; valid before any buffer exists."""
        self._check_open()
        if self.tape in self._compiled:
            return self._memory(0, self._packed())
        lowered = lower(self.tape, self._storage.places, self.backend)
        packed = self._packed(lowered, self._packs(lowered))
        return self._memory(lowered.nbytes(self.backend), packed)

    def _packed(self, lowered: Lowered | None = None, packs: Packs = UNPACKED) -> int:
        """Return the bytes of packed copies, with those that a tape would read."""
        launches = lowered.launches if lowered is not None else ()
        backend = self.backend
        return backend.packed(launches, packs) if isinstance(backend, Packing) else 0

    def _decide_packing(self, lowered: Lowered) -> None:
        """Tell the backend which weights the tape that is compiled next is to read packed."""
        if isinstance(self.backend, Packing):
            self.backend.packs = self._packs(lowered)

    def _memory(self, recorded: int, packed: int) -> Memory:
        """Add up, with so many bytes for the tape that is recorded now, and for packed copies."""
        nbytes = self._storage.nbytes
        activations = sum(compiled.nbytes for compiled in self._compiled.values())
        activations += nbytes["state"] + nbytes["persistent"] + recorded
        mapped = sum(tensor.nbytes for tensor in self._storage.mapped)
        return Memory(
            nbytes["weights"], nbytes["moments"], nbytes["gradients"], activations, mapped, packed
        )

    def _packs(self, lowered: Lowered) -> Packs:
        """Return which weights a tape is to read packed; where "auto" would be tight, none.

        The first tape decides for those that follow, of trained weights the first that trains.
        """
        packs = self.backend.packs if isinstance(self.backend, Packing) else UNPACKED
        if not self._compiled:
            frozen = self.pack_base
            if frozen == "auto" and not self._fits(lowered, Packs(frozen)):
                frozen = "never"
            packs = Packs(frozen)
        if packs.trained is None and any(node.segment == "U" for node in lowered.tape.nodes):
            fits = self._fits(lowered, packs._replace(trained=True))
            packs = packs._replace(trained=fits)
        return packs

    def _fits(self, lowered: Lowered, packs: Packs) -> bool:
        """Return whether these copies fit into memory beside everything else, if that is known."""
        if (free := free_memory()) is None:
            return True
        needed = self._memory(lowered.nbytes(self.backend), self._packed(lowered, packs))
        return needed.peak + needed.mapped <= free
