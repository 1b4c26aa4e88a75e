"""The copy of what an update overwrites, from which it is put back where the device fails.

A device may fail within an update, or before it, in a run that the update builds on; and what is
behind that on the queue runs nevertheless. So the first thing that an update does is to copy the
weights and moments that it is going to overwrite, and then to write the mark: from there on the
copy is whole. All that is in the step's own command buffer. The copy lies where activations lay.
"""

from collections.abc import Callable, Mapping

import numpy as np

from toynn.backends.metal import _bridge
from toynn.backends.metal.device import MetalBuffer, MetalDevice
from toynn.backends.protocol import Journal

__all__ = ["MetalJournal"]

WORD = 16  # bytes that a thread copies
GROUP = 256  # threads of a group


class MetalJournal:
    """A program's journal: dispatches that fill it, and what the CPU does with it."""

    def __init__(
        self,
        device: MetalDevice,
        journal: Journal,
        buffers: Mapping[str, MetalBuffer],
        arguments: MetalBuffer,
        write: Callable[[bytes], int],
    ) -> None:
        self._device, self._arguments = device, arguments
        self._spare = buffers[journal.spare.buffer]
        self._copies: list[tuple[MetalBuffer, int, int, int, int]] = []
        self._mark = write(bytes(4))
        at = journal.spare.offset
        for place, nbytes in journal.overwritten:
            size = write(np.array([nbytes // WORD], np.uint32).tobytes())
            self._copies.append((buffers[place.buffer], place.offset, at, nbytes, size))
            at += nbytes

    @staticmethod
    def structs(journal: Journal | None) -> int:
        """Return how many structs of arguments a journal takes: that is, ``write`` is called."""
        return 0 if journal is None else 1 + len(journal.overwritten)

    def append(self, dispatches: _bridge.Dispatches, segment: str) -> None:
        """Add the dispatches that copy, and the one that writes the mark."""
        copy = self._device.pipeline("program", "program_copy")
        mark = self._device.pipeline("program", "program_mark")
        arguments, spare = self._arguments.memory, self._spare.memory
        for buffer, offset, at, nbytes, size in self._copies:
            groups = -(-nbytes // (WORD * GROUP))
            offsets = [at, offset, size]
            memories = [spare, buffer.memory, arguments]
            dispatches.append(
                segment, copy, memories, offsets, offsets, (groups, 1, 1), (GROUP, 1, 1)
            )
        offsets = [self._mark]
        dispatches.append(segment, mark, [arguments], offsets, offsets, (1, 1, 1), (1, 1, 1))

    def close(self, *, undo: bool) -> None:
        """Take the mark away, when nothing runs; ``undo``: first put back a copy that is whole."""
        if undo and self._arguments.download(self._mark, (), "i32"):
            for buffer, offset, at, nbytes, _ in self._copies:
                buffer.upload(offset, self._spare.download(at, (nbytes,), "u8"))
        self._arguments.fill(self._mark, 4)
