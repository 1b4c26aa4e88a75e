"""View the tokens of several arrays as one array, without copies.

A window that begins in one array continues in the next. So batches do not depend on how a corpus
was cut into files.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer[Any]]


def chained(parts: Sequence[Tokens]) -> Tokens:
    """Return several arrays as one; a single array is returned as it is."""
    return parts[0] if len(parts) == 1 else cast(Tokens, Shards(parts))


class Shards:
    """The part of an array's interface that readers of tokens use: length and indexing."""

    def __init__(self, parts: Sequence[Tokens], dtype: Any = None) -> None:
        self._parts = tuple(part for part in parts if len(part))
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        self.dtype = (
            np.result_type(*(part.dtype for part in parts)) if dtype is None else np.dtype(dtype)
        )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, at: int | slice | NDArray[np.int64]) -> Any:
        """Return an element for an int, shards for a slice, an array for an array of indices."""
        if isinstance(at, slice):
            return self._stretch(*at.indices(len(self)))
        if isinstance(at, np.ndarray):
            return self._elements(at)
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError(f"expected a token of 0..{len(self) - 1}; got {at}")
        return self._elements(np.array(index))[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Tokens:
        """Return all tokens as one array in memory."""
        return np.concatenate([np.empty(0, self.dtype), *self._parts]).astype(dtype or self.dtype)

    def _stretch(self, first: int, end: int, step: int) -> "Shards":
        if step != 1:
            raise IndexError(f"expected a slice with a step of 1; got {step}")
        begins = self._ends - [len(part) for part in self._parts]
        cut = [
            part[max(first - begin, 0) : max(end - begin, 0)]
            for part, begin in zip(self._parts, begins.tolist(), strict=True)
        ]
        return Shards(cut, self.dtype)

    def _elements(self, at: NDArray[np.int64]) -> Tokens:
        which = np.searchsorted(self._ends, at, side="right")
        tokens = np.empty(at.shape, self.dtype)
        for shard in np.unique(which).tolist():
            part, chosen = self._parts[shard], which == shard
            begin = int(self._ends[shard]) - len(part)
            tokens[chosen] = part[at[chosen] - begin]
        return tokens
