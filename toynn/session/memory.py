"""The memory of a session: what its tapes need, and whether prepacked weights fit beside it."""

from collections.abc import Mapping

from toynn.backends.protocol import Backend, Prepacking
from toynn.graph.lowering import CompiledTape, Lowered
from toynn.graph.reports import Memory
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape
from toynn.system.machine import free_memory

__all__ = ["MemoryUse"]


class MemoryUse:
    """Counts the bytes that tapes take, and decides which frozen weights are prepacked.

    ``prepack`` is what the user asked for: see toynn.options.PREPACK.
    """

    def __init__(
        self,
        backend: Backend,
        storage: Storage,
        compiled: Mapping[Tape, CompiledTape],
        prepack: str,
    ) -> None:
        self._backend, self._storage, self._compiled = backend, storage, compiled
        self._prepack = prepack

    def total(self, lowered: Lowered | None = None, prepack: str = "never") -> Memory:
        """Return the bytes of all tapes, including the one that is not compiled yet.

        ``prepack`` says which weights that one would prepack.
        """
        backend, nbytes = self._backend, self._storage.nbytes
        activations = sum(compiled.nbytes for compiled in self._compiled.values())
        activations += nbytes["state"] + nbytes["persistent"]
        activations += lowered.nbytes(backend) if lowered is not None else 0
        launches = lowered.launches if lowered is not None else ()
        packs = backend if isinstance(backend, Prepacking) else None
        return Memory(
            nbytes["weights"],
            nbytes["moments"],
            nbytes["gradients"],
            activations,
            sum(tensor.nbytes for tensor in self._storage.mapped),
            packs.prepacked_nbytes(launches, prepack) if packs else 0,
        )

    def prepack_of(self, lowered: Lowered) -> str:
        """Return which frozen weights a tape prepacks; none if "auto" finds too little memory.

        The first tape decides for those that follow.
        """
        if not isinstance(self._backend, Prepacking):
            return "never"
        if self._compiled:
            return self._backend.prepack
        if self._prepack != "auto" or (free := free_memory()) is None:
            return self._prepack
        needed = self.total(lowered, "auto")
        return "auto" if needed.peak + needed.mapped <= free else "never"

    def decide_prepack(self, lowered: Lowered) -> None:
        """Tell the backend which weights of the tape that is compiled next to prepack."""
        if isinstance(self._backend, Prepacking):
            self._backend.prepack = self.prepack_of(lowered)
