"""The doors of a session to its gradients: clipping, micro-batches that wait, sums over others."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.graph.lowering import CompiledTape
from toynn.graph.storage import Storage
from toynn.graph.tape import Tape, Tensor
from toynn.session.updates import Updates

__all__ = ["GradientDoors"]


class GradientDoors:
    """What a session offers of the gradients of its parameters.

    A norm that is no number above 0 raises ConfigError.
    """

    tape: Tape
    _storage: Storage
    _updates: Updates
    _known: set[Tensor]

    @abstractmethod
    def download(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor's values."""

    @abstractmethod
    def _check_realized(self, call: str, tape: Tape) -> CompiledTape:
        """Return a tape as it was compiled; refuse a call that comes before that."""

    @abstractmethod
    def _exclusively(self, call: str) -> AbstractContextManager[None]:
        """Keep other threads out."""

    @property
    def max_grad_norm(self) -> float | None:
        """The norm to which all gradients together are clipped; None: no clipping."""
        return self._updates.max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float | None) -> None:
        if norm is not None and not (isfinite(norm) and norm > 0):
            raise ConfigError(f"max_grad_norm must be None or a finite number above 0; got {norm}")
        self._updates.max_grad_norm = norm

    @property
    def pending(self) -> bool:
        """Whether gradients of micro-batches wait for an update."""
        return self._updates.pending > 0

    def waiting(self) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Return the weight of micro-batches that wait for an update, and sums of gradients."""
        self._check_realized("waiting()", self.tape)
        with self._exclusively("waiting()"):
            return self._updates.pending, self._updates.sums() if self.pending else {}

    def wait(self, weight: float, sums: Mapping[str, NDArray[np.float32]]) -> None:
        """Go on with what ``waiting`` returned, as if these micro-batches had been run here."""
        self._check_realized("wait()", self.tape)
        with self._exclusively("wait()"):
            self._known.update(self._updates.resume(weight, sums))

    @property
    def grad_norm(self) -> float:
        """Norm of all gradients in the last update, before clipping."""
        return float(self.download(self._updates.norm))

    def combine(
        self, weight: float, change: Callable[[NDArray[np.float32]], object], block: int
    ) -> None:
        """Let ``change`` replace the sums of gradients that wait, and ``weight`` their weight.

        It is given all of them as one flat array, in blocks of at most ``block`` elements, in
        order, and writes into each; where no micro-batch waits they are zeros.
        """
        self._check_realized("combine()", self.tape)
        with self._exclusively("combine()"):
            self._known.update(self._updates.combine(weight, change, block))

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients of the parameters, as ``combine`` sees them."""
        return self._storage.nbytes["gradients"]
