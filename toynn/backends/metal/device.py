"""The device of a session: its memory, its shaders, and its runs in flight."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.backends.host import HostBuffer
from toynn.backends.metal import _bridge
from toynn.backends.metal.sources import source
from toynn.backends.protocol import aligned
from toynn.errors import BackendError

#: Most runs in flight; a device takes no more than 64 command buffers.
MOST_RUNS = 16


class MetalBuffer:
    """Memory that the device and the CPU share. The CPU uses it only when no run is in flight."""

    def __init__(self, device: "MetalDevice", memory: _bridge.Memory) -> None:
        self._device, self.memory = device, memory
        self._host = HostBuffer(np.frombuffer(memory.view(), np.uint8))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._host.nbytes

    def upload(self, offset: int, array: NDArray[Any]) -> None:
        """Copy an array to the bytes from ``offset`` on."""
        self._device.wait()
        self._host.upload(offset, array)

    def download(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return a copy of part of the buffer."""
        self._device.wait()
        return self._host.download(offset, shape, dtype)

    def fill(self, offset: int, nbytes: int) -> None:
        """Fill bytes with zeros."""
        self._device.wait()
        self._host.fill(offset, nbytes)


class MetalDevice:
    """The default device. Raises BackendError if there is none."""

    def __init__(self) -> None:
        self.bridge = _bridge.Device()
        self.limits: dict[str, Any] = self.bridge.limits()
        self._libraries: dict[str, _bridge.Library] = {}
        self._pipelines: dict[str, _bridge.Pipeline] = {}
        self._flying: list[tuple[_bridge.Commands, Callable[[float | None], None]]] = []

    def allocate(self, nbytes: int) -> MetalBuffer:
        """Return a zero-filled buffer. Raises MemoryError, and BackendError for one too long."""
        nbytes = max(aligned(nbytes), 64)
        self._check_length(nbytes)
        return MetalBuffer(self, _bridge.Memory(self.bridge, nbytes))

    def share(self, array: NDArray[np.uint8], nbytes: int) -> MetalBuffer:
        """Return an array's own pages as a buffer: whole pages, ``nbytes`` in all."""
        self._check_length(nbytes)
        start = int(array.ctypes.data)
        return MetalBuffer(self, _bridge.Memory(self.bridge, nbytes, start, array))

    def _check_length(self, nbytes: int) -> None:
        most = self.limits["max_buffer_nbytes"]
        if nbytes > most:
            raise BackendError(
                f"backend 'metal': a buffer of {nbytes} bytes, and {self.limits['name']} has at "
                f"most {most} in one; use a smaller batch or model, or --backend cpu"
            )

    def pipeline(self, op: str, function: str) -> _bridge.Pipeline:
        """Return a function of an op's library. Raises BackendError if it does not compile."""
        if function not in self._pipelines:
            if op not in self._libraries:
                text = source(op, self.limits["simdgroups"])
                self._libraries[op] = _bridge.Library(self.bridge, text)
            self._pipelines[function] = _bridge.Pipeline(self._libraries[op], function)
        return self._pipelines[function]

    def commit(
        self,
        dispatches: _bridge.Dispatches,
        phases: str,
        accumulate: bool,
        done: Callable[[float | None], None],
    ) -> None:
        """Submit the dispatches of these phases at once.

        ``done`` is called when no run is in flight any more, with the seconds that these dispatches
        took. It gets None if they failed, or if an earlier run failed whose results they may use.
        """
        if len(self._flying) == MOST_RUNS:
            self.wait()
        self._flying.append((dispatches.commit(phases, accumulate), done))

    def wait(self) -> None:
        """Return when all runs are done. Raises BackendError with the first failed run's error."""
        flying, self._flying = self._flying, []
        ended: list[tuple[Callable[[float | None], None], float | None]] = []
        errors = []
        for commands, done in flying:
            try:
                seconds: float | None = commands.wait()
            except BackendError as error:
                errors.append(error)
            ended.append((done, None if errors else seconds))
        for done, seconds in reversed(ended):
            done(seconds)
        if errors:
            raise BackendError(
                f"backend 'metal': {self.limits['name']} failed in the middle of a run: "
                f"{errors[0]}; use a smaller batch (--batch, --seq), "
                "checkpointing=True|--checkpointing, or --backend cpu"
            ) from errors[0]
