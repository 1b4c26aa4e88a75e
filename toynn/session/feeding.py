"""The door of a session to all inputs of a step at once."""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import ArrayLike

from toynn.backends.protocol import Backend, FeedInput, Feeds
from toynn.graph.lowering import CompiledTape
from toynn.graph.storage import Storage
from toynn.graph.tape import Role, Tape, Tensor
from toynn.numerics import checks
from toynn.system.critical import uninterrupted

__all__ = ["FeedDoors"]

WEIGHTS = (Role.PARAMETER, Role.CONSTANT)  # backends note their uploads: of these there are copies


class FeedDoors:
    """Uploads of several inputs in one call, where the backend has such a call."""

    tape: Tape
    backend: Backend
    _storage: Storage
    _known: set[Tensor]

    @abstractmethod
    def upload(self, tensor: Tensor, array: ArrayLike) -> None:
        """Copy values into one input."""

    @abstractmethod
    def _check_held(self, tensor: Tensor, verb: str) -> None:
        """Refuse a tensor that has no memory."""

    @abstractmethod
    def _check_realized(self, call: str, tape: Tape) -> CompiledTape:
        """Return a tape as it was compiled; refuse a call that comes before that."""

    @abstractmethod
    def _exclusively(self, call: str) -> AbstractContextManager[None]:
        """Keep other threads out."""

    @uninterrupted
    def feed(self, inputs: Mapping[Tensor, ArrayLike], tape: Tape | None = None) -> None:
        """Upload several inputs of a realized tape: in one compiled call, where they are as usual.

        Raises what ``upload`` raises.
        """
        tape = tape or self.tape
        feeds, key = self._check_realized("feed()", tape).feeds, tuple(inputs)
        if key not in feeds:
            made = [self._feed_input(tape, tensor) for tensor in key]
            backend, plain = self.backend, not any(t.role in WEIGHTS for t in key)
            feeds[key] = backend.feed(made) if isinstance(backend, Feeds) and plain else None
        feed = feeds[key]
        if feed is not None:
            with self._exclusively("feed()"):
                if self._is_right(tape, inputs) and feed.put(tuple(inputs.values())):
                    self._known.update(key)
                    return
        for tensor, array in inputs.items():
            self.upload(tensor, array)

    def _feed_input(self, tape: Tape, tensor: Tensor) -> FeedInput:
        self._check_held(tensor, "feed")
        below = [c for c in tape.checks.get(tensor, ()) if isinstance(c, checks.Below)]
        size = min((check.size for check in below), default=None)
        ignorable = bool(below) and all(check.ignorable for check in below)
        return FeedInput(*self._storage.held[tensor], tensor.shape, tensor.dtype, size, ignorable)

    def _is_right(self, tape: Tape, inputs: Mapping[Tensor, ArrayLike]) -> bool:
        """Make the checks that a feed knows nothing of; False where they would not apply."""
        for tensor, array in inputs.items():
            for check in tape.checks.get(tensor, ()):
                if isinstance(check, checks.Below):
                    continue
                if not isinstance(array, np.ndarray) or array.shape != tensor.shape:
                    return False
                check(tensor.name, array)
        return True
