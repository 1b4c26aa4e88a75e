"""The doors of a session to its persistent tensors: what runs of any tape leave to later runs."""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from toynn.errors import ConfigError, LifecycleError
from toynn.graph.storage import Storage
from toynn.graph.tape import Role, Tape, Tensor
from toynn.numerics import checks
from toynn.system.critical import Section, uninterrupted

__all__ = ["PersistentDoors"]


class PersistentDoors:
    """Memory that is declared, and freed, at any time."""

    tape: Tape
    _storage: Storage
    _known: set[Tensor]
    _names: set[str]
    _recorded: OrderedDict[Any, tuple[Tape, Any]]
    _recording: threading.Lock

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse a session that is closed."""

    @abstractmethod
    def _check_new(self, name: str) -> None:
        """Refuse a name that there is."""

    @abstractmethod
    def _drop(self, tape: Tape) -> None:
        """Let go of a compiled tape."""

    @abstractmethod
    def _exclusively(self, call: str) -> AbstractContextManager[None]:
        """Keep other threads out."""

    @uninterrupted
    def persistent(self, name: str, shape: Sequence[int]) -> Tensor:
        """Declare, at any time, what runs of any tape leave to later runs; zeros at first."""
        dimensions = checks.dimensions(name, shape)
        self._check_new(name)
        tensor = self._storage.keep(name, dimensions)
        self._names.add(name)
        return tensor

    def release(self, tensors: Iterable[Tensor]) -> None:
        """Free persistent tensors: their names are free again, ``record``ed tapes of them gone.

        Raises ConfigError for what is no persistent tensor of this session, LifecycleError where
        the session's own tape uses one, or while another tape is being recorded.
        """
        self._check_open()
        gone = set(tensors)
        for tensor in gone:
            if tensor.role is not Role.PERSISTENT or tensor not in self._storage.held:
                raise ConfigError(f"release: {tensor!r} is no persistent tensor of this session")
        why = "release() while another tape is being recorded"
        with Section(self._recording, why), self._exclusively("release()"):
            if not gone.isdisjoint(self.tape.roots):
                raise LifecycleError("release() of what the session's own tape uses")
            for key, (tape, _) in list(self._recorded.items()):
                if not gone.isdisjoint(tape.roots):
                    self._drop(self._recorded.pop(key)[0])
            for tensor in gone:
                self._storage.release(tensor)
                self._names.remove(tensor.name)
            self._known -= gone
