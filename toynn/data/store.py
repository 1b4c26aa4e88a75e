"""Stores of tokens, in memory or on disk.

A store returns the tokens of a file; it calls ``fill`` to make them, unless it has them. It also
returns the files that it has mapped, which must not change.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.documents import Documents
from toynn.data.examples import Examples
from toynn.errors import DataError

#: Adds examples to an object, and returns facts about them as JSON values.
FillExamples = Callable[[Examples], dict[str, Any]]
#: Yields tokens, some at a time.
FillTokens = Callable[[], Iterable[NDArray[np.int32]]]


class Watched(Protocol):
    """One or several mapped files."""

    def check(self) -> None:
        """Raise DataError if the file has changed since it was opened."""


#: The mapped files behind what a store returns.
Mapped = tuple[Watched, ...]


class Store(Protocol):
    """Keeps tokens. ``told`` is everything that they depend on besides the file's bytes.

    All ids that a store returns are below the vocabulary size.
    """

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any], Mapped]:
        """Return a file's examples, with the settings of ``empty``, and facts about them."""

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[NDArray[np.integer[Any]], Mapped]:
        """Return the tokens of a file."""

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[Documents, Mapped]:
        """Return the documents of a file; ``fill`` yields each one's tokens, never none."""


class InMemory:
    """Makes everything anew, in memory."""

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any], Mapped]:
        """Return new examples."""
        return empty, fill(empty), ()

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[NDArray[np.integer[Any]], Mapped]:
        """Return new tokens. Raises DataError for ids outside the vocabulary."""
        ids = np.concatenate([np.empty(0, np.int32), *fill()])
        check_ids(f"{path}", ids, vocab_size)
        return ids, ()

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[Documents, Mapped]:
        """Return new documents. Raises DataError for ids outside the vocabulary."""
        lengths = array("q")
        kept = array("i")
        for some in fill():
            lengths.append(len(some))
            kept.frombytes(some.tobytes())
        ids, ends = np.array(kept, np.int32), np.cumsum(lengths, dtype=np.int64)
        check_ids(f"{path}", ids, vocab_size)
        return Documents(ids, ends - np.array(lengths, np.int64)), ()


def check_ids(where: str, ids: Sequence[int] | NDArray[np.integer[Any]], vocab_size: int) -> None:
    """Raise DataError unless all ids of a tokenizer are in the model's vocabulary."""
    if not len(ids):
        return
    values = np.asarray(ids)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= vocab_size:
        raise DataError(
            f"{where}: expected token ids of 0..{vocab_size - 1}; got {low if low < 0 else high}: "
            f"the tokenizer is not the model's"
        )
