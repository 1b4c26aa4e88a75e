"""A copy of what an update overwrites: if the device fails, weights and moments are restored.

A device may fail within an update, or in an earlier run whose results the update uses. The queue
goes on with later commands after one has failed. So an update first copies the weights and moments
that it will overwrite, then writes a mark that the copy is complete. All of this is in the step's
own command buffer. The copy is stored where the activations were.
"""

from collections.abc import Callable, Mapping

import numpy as np

from toynn.backends.metal import _bridge
from toynn.backends.metal.device import MetalBuffer, MetalDevice
from toynn.backends.protocol import UndoLog

WORD = 16  # bytes that a thread copies
GROUP = 256  # threads of a group


class MetalUndoLog:
    """A program's undo log: the dispatches that fill it, and how the CPU restores from it."""

    def __init__(
        self,
        device: MetalDevice,
        undo_log: UndoLog,
        buffers: Mapping[str, MetalBuffer],
        arguments: MetalBuffer,
        write: Callable[[bytes], int],
    ) -> None:
        self._device, self._arguments = device, arguments
        self._spare = buffers[undo_log.spare.buffer]
        self._copies: list[tuple[MetalBuffer, int, int, int, int]] = []
        self._mark = write(bytes(4))
        at = undo_log.spare.offset
        for place, nbytes in undo_log.overwritten:
            size = write(np.array([nbytes // WORD], np.uint32).tobytes())
            self._copies.append((buffers[place.buffer], place.offset, at, nbytes, size))
            at += nbytes

    @staticmethod
    def structs(undo_log: UndoLog | None) -> int:
        """Return how many argument structs an undo log needs: how often it calls ``write``."""
        return 0 if undo_log is None else 1 + len(undo_log.overwritten)

    def append(self, dispatches: _bridge.Dispatches, phase: str) -> None:
        """Add the dispatches that copy, and the dispatch that writes the mark."""
        copy = self._device.pipeline("program", "program_copy")
        mark = self._device.pipeline("program", "program_mark")
        arguments, spare = self._arguments.memory, self._spare.memory
        for buffer, offset, at, nbytes, size in self._copies:
            groups = -(-nbytes // (WORD * GROUP))
            offsets = [at, offset, size]
            memories = [spare, buffer.memory, arguments]
            dispatches.append(
                phase, copy, memories, offsets, offsets, (groups, 1, 1), (GROUP, 1, 1)
            )
        offsets = [self._mark]
        dispatches.append(phase, mark, [arguments], offsets, offsets, (1, 1, 1), (1, 1, 1))

    def close(self, *, undo: bool) -> None:
        """Clear the mark, when nothing runs; with ``undo``, first restore a complete copy."""
        if undo and self._arguments.download(self._mark, (), "i32"):
            for buffer, offset, at, nbytes, _ in self._copies:
                buffer.upload(offset, self._spare.download(at, (nbytes,), "u8"))
        self._arguments.fill(self._mark, 4)
