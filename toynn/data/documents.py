"""A text of many documents, in windows whose tokens attend only within their document.

A window is T tokens of the text, from any token on, as in text.py. Each document in a window is a
segment. Attention stays within a segment, and positions start at 0. The last token of a document
has no label, since the next document does not continue it. A document that began before the
window starts anew at the window's first token.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, Batch
from toynn.data.text import RandomWindows, spaced_starts


@dataclass(frozen=True)
class Documents:
    """Documents, one after the other.

    Attributes
    ----------
    ids
        All tokens (n,).
    begins
        Where each document begins, ascending; the first is 0.
    """

    ids: NDArray[np.integer[Any]]
    begins: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> NDArray[np.integer[Any]]: ...
    def __getitem__(self, at: int | slice) -> int | NDArray[np.integer[Any]]:
        return self.ids[at]

    def parted(self, at: int) -> "tuple[Documents, Documents]":
        """Split the tokens at ``at``, which may cut a document in two."""
        later = self.begins[self.begins > at] - at
        return (
            Documents(self.ids[:at], self.begins[self.begins < at]),
            Documents(self.ids[at:], np.concatenate([[0], later])),
        )

    def windows(self, starts: NDArray[np.int64], seq: int) -> Batch:
        """Return the windows of ``seq`` tokens that begin at ``starts``."""
        at = starts[:, None] + np.arange(seq)
        document = np.searchsorted(self.begins, at, side="right") - 1
        first = np.maximum(self.begins[document], starts[:, None])  # of the segment
        row = np.arange(len(starts))[:, None] * seq
        last = self.begins[np.searchsorted(self.begins, at + 1, side="right") - 1] == at + 1
        labels = np.where(last, np.int32(IGNORED), self.ids[at + 1])  # ids: any integer type
        arrays = (self.ids[at], at - first, labels, row + first - starts[:, None])
        ids, positions, labels, segments = (each.astype(np.int32).ravel() for each in arrays)
        origin = at.ravel() + 1
        return Batch(ids, positions, labels, segments, room=len(starts) * seq, origin=origin)


def parted(blocks: Iterable[str], separator: str) -> Iterator[str]:
    """Split a text that comes in blocks at its separators; yield empty parts too."""
    rest, seen = "", 0
    for block in blocks:
        rest += block
        begin = 0
        while (at := rest.find(separator, max(begin, seen))) >= 0:
            yield rest[begin:at]
            begin = at + len(separator)
        rest = rest[begin:]
        seen = max(0, len(rest) - len(separator) + 1)
    yield rest


class DocumentWindows(RandomWindows):
    """Endless training batches of windows that begin at random tokens of the documents."""

    def __init__(self, documents: Documents, batch: int, seq: int, seed: int) -> None:
        super().__init__(documents.ids, batch, seq, seed)
        self._documents = documents

    def _cut(self, starts: NDArray[np.int64]) -> Batch:
        return self._documents.windows(starts, self._seq)


def spaced_documents(documents: Documents, batch: int, seq: int, max_batches: int) -> list[Batch]:
    """Return at most max_batches of evenly spaced windows that do not overlap."""
    starts = spaced_starts(len(documents), batch, seq, max_batches)
    rows = (starts[first : first + batch] for first in range(0, len(starts), batch))
    return [documents.windows(some, seq) for some in rows]
