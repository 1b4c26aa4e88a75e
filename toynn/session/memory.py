"""The memory of a session: the bytes of its tapes, and whether prepacked weights fit too."""

from collections.abc import Mapping

from toynn.backends.protocol import Backend, Prepacking
from toynn.graph.lowering import CompiledTape, Lowered
from toynn.graph.reports import Cost, Memory
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape
from toynn.system.machine import free_memory


class MemoryUse:
    """Counts the bytes that tapes take, and decides which frozen weights are prepacked.

    ``prepack`` is the user's choice: see toynn.options.PREPACK.
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
        """Return the bytes of all compiled tapes and of ``lowered``, which is not compiled yet.

        ``prepack`` is the choice of prepacked weights for ``lowered``.
        """
        backend, nbytes = self._backend, self._storage.nbytes
        activations = sum(compiled.nbytes for compiled in self._compiled.values())
        activations += nbytes["state"] + nbytes["persistent"]
        activations += lowered.nbytes if lowered is not None else 0
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

    def cost(self, lowered: Lowered, prepack: str) -> Cost:
        """Return what a training step by ``lowered``, which is not compiled yet, takes."""
        running = lowered.tape.phases("update")
        launches = [each for each in lowered.launches if each.phase in running]
        return Cost(self.total(lowered, prepack), self._backend.seconds(launches, prepack))

    def prepack_of(self, lowered: Lowered) -> str:
        """Return the choice of prepacked weights; "auto" becomes "never" without enough memory.

        The first tape decides for all later tapes.
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
        """Set the backend's choice of prepacked weights for the next tape that is compiled."""
        if isinstance(self._backend, Prepacking):
            self._backend.prepack = self.prepack_of(lowered)
