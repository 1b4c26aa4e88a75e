"""The doors of a session to its memory: what its tapes need, and what there is room for beside."""

from abc import abstractmethod
from collections.abc import Sequence

from toynn.backends.protocol import Backend, Launch
from toynn.graph.lowering import CompiledTape, Lowered, lower
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape
from toynn.machine import free_memory
from toynn.reports import Memory

__all__ = ["MemoryDoors"]


class MemoryDoors:
    """What a session says of its memory, and whether frozen weights are kept packed in it."""

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
        packed = self._packed(lowered.launches, self._packs(lowered))
        return self._memory(lowered.nbytes(self.backend), packed)

    def _memory(self, recorded: int, packed: int) -> Memory:
        """Add up, with so many bytes for the tape that is recorded now, and for packed copies."""
        nbytes = self._storage.nbytes
        activations = sum(compiled.nbytes for compiled in self._compiled.values())
        activations += nbytes["state"] + nbytes["persistent"] + recorded
        mapped = sum(tensor.nbytes for tensor in self._storage.mapped)
        return Memory(
            nbytes["weights"], nbytes["moments"], nbytes["gradients"], activations, mapped, packed
        )

    def _packed(self, launches: Sequence[Launch] = (), packs: str = "never") -> int:
        return 0 if self.pack_base == "never" else self.backend.packed(launches, packs)

    def _packs(self, lowered: Lowered) -> str:
        """Return which frozen weights a tape is to read packed; "auto" is "never" if it is tight.

        The first tape decides for those that follow.
        """
        if self._compiled:
            return self.backend.packs
        if self.pack_base == "auto" and (free := free_memory()) is not None:
            packed = self._packed(lowered.launches, "auto")
            needed = self._memory(lowered.nbytes(self.backend), packed)
            if needed.peak + needed.mapped > free:
                return "never"
        return self.pack_base
