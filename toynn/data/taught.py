"""What a teacher says of tokens, written to a file once: `toynn teach`.

The file is a line of JSON of HEADER bytes, which names model, data and temperature, then a record
for each token with loss, in the order of the data. It is mapped, and read where a batch needs it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, Batch
from toynn.data.documents import Documents
from toynn.data.examples import Examples
from toynn.errors import DataError
from toynn.system.reading import Unchanged, open_file

HEADER = 4096
BEGIN = b'{"toynn": "teacher 1"'
BLOCK = 2**20  # tokens at a time


class Taught(NamedTuple):
    """What a teacher says of n rows.

    ids int32 (n, k), ascending; log_p (n, k), their log probabilities; log_rest (n,), that of all
    other tokens; ``weight``: the share of the divergence in the loss.
    """

    ids: NDArray[np.int32]
    log_p: NDArray[np.float32]
    log_rest: NDArray[np.float32]
    weight: float = 1.0


def record(k: int, vocab: int) -> np.dtype[Any]:
    """Return the type of a record: k ids, their log probabilities, that of the rest."""
    ids = "<u2" if vocab <= 2**16 else "<u4"
    return np.dtype([("ids", ids, (k,)), ("log_p", "<f4", (k,)), ("log_rest", "<f4")])


def header(facts: dict[str, Any]) -> bytes:
    """Return the first HEADER bytes of a file."""
    return json.dumps({"toynn": "teacher 1", **facts}).encode().ljust(HEADER - 1) + b"\n"


def is_taught(path: str | PathLike[str]) -> bool:
    """Whether a path is such a file, finished or not. Raises DataError if it cannot be read."""
    if Path(path).is_dir():
        return False
    with open_file(path) as file:
        return file.read(len(BEGIN)) == BEGIN


def _parts(train: Any) -> tuple[Any, NDArray[np.int64]]:
    """Return all tokens of examples, documents or a text, and where their parts begin."""
    if isinstance(train, Examples):
        return train._columns.ids, np.array(train._columns.begins, np.int64)[:-1]
    if isinstance(train, Documents):
        return train.ids, train.begins
    return train, np.zeros(1, np.int64)


def learned(train: Any) -> NDArray[np.bool_]:
    """Return which tokens have loss."""
    ids, begins = _parts(train)
    mask = np.ones(len(ids), np.bool_)
    if isinstance(train, Examples):
        mask = np.array(train._columns.learned, np.bool_)
    mask[begins] = False
    return mask


def data_digest(train: Any) -> str:
    """Return the SHA-256 of all tokens, of which have loss, and of where parts begin."""
    ids, begins = _parts(train)
    whole = hashlib.sha256()
    for first in range(0, len(ids), BLOCK):
        whole.update(np.asarray(ids[first : first + BLOCK]).astype("<i4").tobytes())
    whole.update(begins.astype("<i8").tobytes() + np.packbits(learned(train)).tobytes())
    return whole.hexdigest()


def in_order(train: Any, batch: int, seq: int) -> Iterator[Batch]:
    """Yield batches of at most ``batch`` x ``seq`` tokens; each token with loss is in one of them.

    Examples are whole, those held out too. Of a text, windows of ``seq`` tokens overlap by half, so
    that a token has at least seq/2 tokens before it, but for the first ones.
    """
    if isinstance(train, Examples):
        whole = Examples.of(train._columns, train.seq)
        first, room = 0, 0
        for at, length in enumerate(whole.lengths.tolist()):
            if room and room + length > batch * seq:
                yield whole.batch(range(first, at), room)
                first, room = at, 0
            room += length
        if room:
            yield whole.batch(range(first, len(whole)), room)
        return
    documents = train if isinstance(train, Documents) else Documents(*_parts(train))
    last, spans, end = len(documents) - 1, [], 0  # labels up to ``end`` are in a window
    while end < last:
        start = max(0, min(end - seq + max(1, seq // 2), last - seq))
        spans.append((start, end))
        end = start + min(seq, last)
    for first in range(0, len(spans), batch):
        starts, ends = np.array(spans[first : first + batch]).T
        windows = documents.windows(starts, min(seq, last))
        windows.labels[windows.origin <= np.repeat(ends, min(seq, last))] = IGNORED
        yield windows


@dataclass
class TaughtFile:
    """A finished file over the data that it was written for; call it with a batch of theirs."""

    path: Path
    facts: dict[str, Any]
    train: Any
    weight: float
    watched: Unchanged

    @classmethod
    def opened(cls, path: str | Path, train: Any, tokens: Sequence[str], weight: float) -> Any:
        """Check a file's header and length. Raises DataError for a file of other data."""
        path = Path(path)
        with open_file(path) as file:
            line = file.read(HEADER)
            size, watched = file.seek(0, 2), Unchanged.of(path, file=file)
        try:
            facts = json.loads(line)
            expected = HEADER + facts["records"] * record(facts["k"], facts["vocab"]).itemsize
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: the header of `toynn teach` is damaged: {error}") from error
        if size != expected:
            raise DataError(
                f"{path}: expected {expected:,} bytes; got {size:,}: run `toynn teach` again"
            )
        if facts["tokens"] != tokens_digest(tokens):
            raise DataError(f"{path}: its teacher has another tokenizer than the model to train")
        if facts["data"] != data_digest(train):
            raise DataError(
                f"{path}: it was written for other data, or for data that were read by other "
                "options: give `toynn teach` the same --data, --seq, --holdout and the like"
            )
        return cls(path, facts, train, weight, watched)

    @property
    def k(self) -> int:
        """How many tokens the teacher names."""
        return int(self.facts["k"])

    @cached_property
    def _records(self) -> Any:
        kind = record(self.k, self.facts["vocab"])
        return np.memmap(self.path, kind, "r", HEADER, (self.facts["records"],))

    @cached_property
    def _place(self) -> NDArray[np.int64] | None:
        """The record of each token with loss; None: of a text, the token's index less 1."""
        plain = not isinstance(self.train, Examples | Documents)
        return None if plain else np.cumsum(learned(self.train)) - 1

    def __call__(self, batch: Batch) -> Taught:
        """Return what the teacher says of the rows with loss, in the order of the labels.

        Raises DataError if the file has changed since it was opened.
        """
        origin = np.asarray(batch.origin)[np.asarray(batch.labels) != IGNORED]
        found = self._records[origin - 1 if self._place is None else self._place[origin]]
        ids = found["ids"].astype(np.int32)
        self.watched.check()
        return Taught(ids, found["log_p"], found["log_rest"], self.weight)


def tokens_digest(tokens: Sequence[str]) -> str:
    """Return the SHA-256 of a list of tokens."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()
