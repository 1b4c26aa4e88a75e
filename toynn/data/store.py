"""Stores of tokens: in memory, or on the disk.

A store is asked for what a file becomes: it calls ``fill`` to make it, unless it has it. It also
returns what it has mapped of it: files that must stay as they are.
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

__all__ = ["FillExamples", "FillTokens", "InMemory", "Mapped", "Store", "Watched", "check_ids"]

#: Puts examples into an object, and returns what else is to be known, in values that JSON holds.
FillExamples = Callable[[Examples], dict[str, Any]]
#: Yields tokens, some at a time.
FillTokens = Callable[[], Iterable[NDArray[np.int32]]]


class Watched(Protocol):
    """A file that is mapped, or several."""

    def check(self) -> None:
        """Raise DataError where the file is no longer what it was when it was opened."""


#: What is mapped of what a store returns.
Mapped = tuple[Watched, ...]


class Store(Protocol):
    """What keeps tokens. ``told`` is all that they depend on beside the file's bytes.

    All that it returns is of the vocabulary.
    """

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any], Mapped]:
        """Return the examples of a file, like ``empty``, and what else is to be known of them."""

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[NDArray[np.integer[Any]], Mapped]:
        """Return the tokens of a file."""

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[Documents, Mapped]:
        """Return the documents of a file; ``fill`` yields the tokens of each, some at least."""


class InMemory:
    """Keeps nothing for later."""

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any], Mapped]:
        """Return new examples."""
        return empty, fill(empty), ()

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[NDArray[np.integer[Any]], Mapped]:
        """Return new tokens. Raises DataError for ids that are not of the vocabulary."""
        ids = np.concatenate([np.empty(0, np.int32), *fill()])
        check_ids(f"{path}", ids, vocab_size)
        return ids, ()

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[Documents, Mapped]:
        """Return new documents. Raises DataError for ids that are not of the vocabulary."""
        lengths = array("q")
        kept = array("i")
        for some in fill():
            lengths.append(len(some))
            kept.frombytes(some.tobytes())
        ids, ends = np.array(kept, np.int32), np.cumsum(lengths, dtype=np.int64)
        check_ids(f"{path}", ids, vocab_size)
        return Documents(ids, ends - np.array(lengths, np.int64)), ()


def check_ids(where: str, ids: Sequence[int] | NDArray[np.integer[Any]], vocab_size: int) -> None:
    """Raise DataError unless all ids, which a tokenizer has made, are of a vocabulary."""
    if not len(ids):
        return
    values = np.asarray(ids)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= vocab_size:
        raise DataError(
            f"{where}: expected token ids of 0..{vocab_size - 1}; got {low if low < 0 else high}: "
            f"the tokenizer is not the model's"
        )
