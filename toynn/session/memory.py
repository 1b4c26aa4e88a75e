"""The doors of a session to its memory: what its tapes need, and what there is room for beside."""

from abc import abstractmethod

from toynn.backends.protocol import Backend, Prepacking
from toynn.graph.lowering import CompiledTape, Lowered, lower
from toynn.graph.reports import Memory
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape
from toynn.system.machine import free_memory

__all__ = ["MemoryDoors"]


class MemoryDoors:
    """What a session says of its memory, and which weights are prepacked."""

    tape: Tape
    backend: Backend
    prepack: str  # see toynn.options.PREPACK
    _storage: Storage
    _compiled: dict[Tape, CompiledTape]

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse a session that is closed."""

    def memory(self) -> Memory:
        """Return the bytes that the tapes recorded so far need; valid before any buffer exists."""
        self._check_open()
        if self.tape in self._compiled:
            return self._memory(0, self._prepacked())
        lowered = lower(self.tape, self._storage.places, self.backend)
        prepacked = self._prepacked(lowered, self._prepack(lowered))
        return self._memory(lowered.nbytes(self.backend), prepacked)

    def _prepacked(self, lowered: Lowered | None = None, prepack: str = "never") -> int:
        """Return the bytes of prepacked weights, with those that a tape would read."""
        launches = lowered.launches if lowered is not None else ()
        backend = self.backend
        return backend.prepacked_nbytes(launches, prepack) if isinstance(backend, Prepacking) else 0

    def _decide_prepack(self, lowered: Lowered) -> None:
        """Tell the backend which weights of the tape that is compiled next to prepack."""
        if isinstance(self.backend, Prepacking):
            self.backend.prepack = self._prepack(lowered)

    def _memory(self, recorded: int, prepacked: int) -> Memory:
        """Add up, with the bytes of the tape that is recorded now and of prepacked weights."""
        nbytes = self._storage.nbytes
        activations = sum(compiled.nbytes for compiled in self._compiled.values())
        activations += nbytes["state"] + nbytes["persistent"] + recorded
        mapped = sum(tensor.nbytes for tensor in self._storage.mapped)
        return Memory(
            nbytes["weights"],
            nbytes["moments"],
            nbytes["gradients"],
            activations,
            mapped,
            prepacked,
        )

    def _prepack(self, lowered: Lowered) -> str:
        """Return which frozen weights a tape prepacks; none if "auto" finds too little memory.

        The first tape decides for those that follow.
        """
        if self._compiled:
            return self.backend.prepack if isinstance(self.backend, Prepacking) else "never"
        prepack = self.prepack
        return "never" if prepack == "auto" and not self._fits(lowered, prepack) else prepack

    def _fits(self, lowered: Lowered, prepack: str) -> bool:
        """Return whether prepacked weights fit into memory beside everything else, if known."""
        if (free := free_memory()) is None:
            return True
        needed = self._memory(lowered.nbytes(self.backend), self._prepacked(lowered, prepack))
        return needed.peak + needed.mapped <= free
