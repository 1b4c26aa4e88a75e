"""Where tokens go once a text has become tokens: into memory, or, elsewhere, onto the disk.

A store is asked for what a file becomes: it calls ``fill`` to make it, unless it has it.
"""

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.documents import Documents
from toynn.data.examples import Examples

__all__ = ["FillExamples", "FillTokens", "InMemory", "Store"]

#: Puts examples into an object, and returns what else is to be known, in values that JSON holds.
FillExamples = Callable[[Examples], dict[str, Any]]
#: Yields tokens, some at a time.
FillTokens = Callable[[], Iterable[NDArray[np.int32]]]


class Store(Protocol):
    """What keeps tokens. ``told`` is all that they depend on beside the file's bytes."""

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any]]:
        """Return the examples of a file, like ``empty``, and what else is to be known of them."""

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> NDArray[np.integer[Any]]:
        """Return the tokens of a file."""

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> Documents:
        """Return the documents of a file; ``fill`` yields the tokens of each, some at least."""


class InMemory:
    """Keeps nothing for later."""

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any]]:
        """Return new examples."""
        return empty, fill(empty)

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> NDArray[np.integer[Any]]:
        """Return new tokens."""
        return np.concatenate([np.empty(0, np.int32), *fill()])

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> Documents:
        """Return new documents."""
        lengths = array("q")
        ids = array("i")
        for some in fill():
            lengths.append(len(some))
            ids.frombytes(some.tobytes())
        ends = np.cumsum(lengths, dtype=np.int64)
        return Documents(np.array(ids, np.int32), ends - np.array(lengths, np.int64))
