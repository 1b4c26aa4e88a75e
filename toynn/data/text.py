"""Text as byte-level tokens: a corpus, batches of windows, and a baseline.

A token is a byte, so the vocabulary is 256 and no tokenizer is needed. At each of the T positions
of a window the model predicts the next token. Ids are bytes s .. s+T-1 of the text, and labels are
bytes s+1 .. s+T.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, Batch
from toynn.data.stream import BOM, decoded
from toynn.errors import DataError
from toynn.system.reading import read_bytes

__all__ = ["VOCAB", "ByteBigram", "Corpus", "RandomWindows", "spaced_starts", "spaced_windows"]

VOCAB = 256
BLOCK = 2**20  # tokens that are counted at once

Tokens = NDArray[np.integer[Any]]  # bytes, or the ids of any tokenizer


@dataclass(frozen=True)
class Corpus:
    """A named text in UTF-8."""

    name: str
    text: bytes

    @classmethod
    def embedded(cls) -> "Corpus":
        """Join the language reference that ships with every CPython, each paragraph once.

        Topics quote each other. With the repeats, an eighth of the validation part would be in the
        training part word for word, and its loss would measure memorization.
        """
        from pydoc_data.topics import topics

        paragraphs = re.split(r"\n{2,}", "\n\n".join(topics[name] for name in sorted(topics)))
        return cls("pydoc_data.topics", "\n\n".join(dict.fromkeys(paragraphs)).encode())

    @classmethod
    def read(cls, path: str | Path) -> "Corpus":
        """Read a UTF-8 file; a byte order mark is dropped. Raises DataError."""
        text = read_bytes(path).removeprefix(BOM)
        if not text:
            raise DataError(f"{path}: the file is empty")
        for _ in decoded(path, [text]):
            pass
        return cls(str(path), text)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text).hexdigest()


class RandomWindows(Iterator[Batch]):
    """Endless training batches of windows that begin at random places in the text."""

    def __init__(self, tokens: Tokens, batch: int, seq: int, seed: int) -> None:
        self._tokens, self._batch, self._seq = tokens, batch, seq
        self._random = np.random.default_rng(seed)
        self.examples = len(tokens) - seq  # the number of windows
        #: batches in an epoch: as many tokens as the text
        self.per_epoch = (len(tokens) - 1) / (batch * seq)

    def __next__(self) -> Batch:
        starts = self._random.integers(0, len(self._tokens) - self._seq, self._batch)
        return self._cut(starts)

    def _cut(self, starts: NDArray[np.int64]) -> Batch:
        return _windows(self._tokens, starts, self._seq)

    @property
    def state(self) -> dict[str, Any]:
        """The generator's state: set it again and the same batches follow."""
        return dict(self._random.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = state


def spaced_starts(count: int, batch: int, seq: int, max_batches: int) -> NDArray[np.int64]:
    """Return where windows of ``seq`` tokens begin, evenly spaced and without overlap."""
    n = min((count - 1) // seq, batch * max_batches)
    return np.arange(n) * (count - 1 - seq) // max(n - 1, 1)


def spaced_windows(tokens: Tokens, batch: int, seq: int, max_batches: int) -> list[Batch]:
    """Return at most max_batches of evenly spaced windows that do not overlap.

    Every batch has the full shape; labels of rows that a short text cannot fill are IGNORED.
    """
    starts = spaced_starts(len(tokens), batch, seq, max_batches)
    batches = []
    for first in range(0, len(starts), batch):
        rows = starts[first : first + batch]
        missing = batch - len(rows)
        window = _windows(tokens, np.concatenate([rows, np.zeros(missing, rows.dtype)]), seq)
        window.labels[len(rows) * seq :] = IGNORED
        batches.append(window)
    return batches


def _windows(tokens: Tokens, starts: NDArray[np.int64], seq: int) -> Batch:
    at = starts[:, None] + np.arange(seq)
    positions = np.tile(np.arange(seq, dtype=np.int32), len(starts))
    return Batch(
        tokens[at].astype(np.int32).ravel(),
        positions,
        tokens[at + 1].astype(np.int32).ravel(),
        origin=at.ravel() + 1,
    )


class ByteBigram:
    """The baseline: P(next byte | this byte), counted in a text, with one added to every count."""

    def __init__(self, tokens: Tokens) -> None:
        counts = np.ones(VOCAB * VOCAB)
        for begin in range(0, len(tokens) - 1, BLOCK):
            some = np.asarray(tokens[begin : begin + BLOCK + 1])
            pairs = some[:-1].astype(np.int64) * VOCAB + some[1:]
            counts += np.bincount(pairs, minlength=VOCAB * VOCAB)
        table = counts.reshape(VOCAB, VOCAB)
        self._log_p = np.log(table / table.sum(axis=1, keepdims=True))

    def loss(self, batches: Sequence[Batch]) -> float:
        """Return the mean of -log P over the labels with loss, in nats per byte."""
        total, rows = 0.0, 0
        for batch in batches:
            counts = batch.labels != IGNORED
            total -= self._log_p[batch.inputs[counts], batch.labels[counts]].sum()
            rows += int(counts.sum())
        return total / rows
