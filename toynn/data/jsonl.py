"""Data for fine-tuning: a folder of train.jsonl, valid.jsonl and test.jsonl, a .jsonl, or a .txt.

Every line of a .jsonl is an object, and all of a file have one form:

    {"text": "..."}                                             all of it has loss
    {"prompt": "...", "completion": "..."}                      the completion has loss
    {"messages": [{"role": "user", "content": "..."}, ...]}     what the assistant says has loss

So are Alpaca's instruction, input, output and ShareGPT's conversations. Tables (.csv, .tsv;
.parquet and .arrow by pyarrow) have them as rows, a folder of .txt and .md as texts; .gz and .zst
are unpacked. Other keys are ignored, and blank lines. A text and a completion end with EOS; the
names of special tokens in them are plain text. These are the forms and file names that mlx-lm
reads, too. A .txt is one long text, read in windows; a .bin is tokens already.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import TABLES, is_container
from toynn.data._rows import checked_messages, keys_of, rows, string_of, where_of
from toynn.data.batch import Batch
from toynn.data.documents import Documents, DocumentWindows, parted, spaced_documents
from toynn.data.examples import Examples, ShuffledExamples, check_not_asked, split_off
from toynn.data.packing import PackedExamples, examples_in_order, packed_in_order
from toynn.data.reader import TOGETHER, Encoder, Reader, ReadOptions
from toynn.data.splits import part_of
from toynn.data.store import Mapped
from toynn.data.stream import blocks, looked_at, silent
from toynn.data.text import Corpus, RandomWindows, spaced_windows
from toynn.data.windows import Source, Windows, read_binary, read_windows, tail_of
from toynn.errors import DataError
from toynn.system.reading import Unchanged

__all__ = [
    "Dataset",
    "Encoder",
    "documents",
    "long_text",
    "measured_part",
    "prompts",
    "read",
    "read_all",
]

TRAIN, VALID, TEST = "train.jsonl", "valid.jsonl", "test.jsonl"
KINDS = (
    f"a folder with {TRAIN}, a .jsonl file (one JSON object per line), a .txt or .bin file, a "
    f"table ({', '.join(TABLES)}), one of them packed by gzip or zstd, or a folder of .txt and .md"
)

Tokens = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Dataset:
    """Examples, or a long text, to train on and to validate on; and notes for the user."""

    train: Examples | Documents | Tokens
    valid: Examples | Documents | Tokens
    test: Examples | None
    seq: int
    notes: list[str]  # lines to be told
    chats: bool = False  # whether the examples are conversations
    packing: bool = False  # whether a row of a batch is several examples
    source: Source | None = None  # the long text
    mapped: Mapped = ()

    def check_unchanged(self) -> None:
        """Raise DataError where a file that is mapped is no longer the one that was opened."""
        for file in self.mapped:
            file.check()

    @property
    def packed(self) -> bool:
        """Whether batches have segments: of examples, or of documents."""
        return isinstance(self.train, Examples | Documents)

    def rows_for(self, t_batch: int, t_seq: int) -> int:
        """Return how many rows a batch of t_batch x t_seq tokens has."""
        return t_batch

    def batches(self, batch: int, seed: int) -> PackedExamples | ShuffledExamples | RandomWindows:
        """Return endless training batches, with a `state` to go on from."""
        if isinstance(self.train, Documents):
            return DocumentWindows(self.train, batch, self.seq, seed)
        if not isinstance(self.train, Examples):
            return RandomWindows(self.train, batch, self.seq, seed)
        if self.packing:
            return PackedExamples(self.train, batch, seed)
        return ShuffledExamples(self.train, batch, seed)

    def valid_batches(self, batch: int, max_batches: int) -> Sequence[Batch]:
        """Return the same validation batches each time."""
        if isinstance(self.valid, Examples):
            return self._in_order(self.valid, batch, max_batches)
        if isinstance(self.valid, Documents):
            return spaced_documents(self.valid, batch, self.seq, max_batches)
        return spaced_windows(self.valid, batch, self.seq, max_batches)

    def test_batches(self, batch: int) -> list[Batch]:
        """Return all of the test part; none where there is no such part."""
        return [] if self.test is None else self._in_order(self.test, batch)

    def _in_order(self, part: Examples, batch: int, max_batches: int | None = None) -> list[Batch]:
        order = packed_in_order if self.packing else examples_in_order
        return order(part, batch, max_batches)

    def with_valid(self, other: "Dataset", where: str) -> "Dataset":
        """Return these data with all that others train on as the validation part.

        Raises DataError where one is examples, and the other a text.
        """
        kinds = ["examples" if isinstance(d.train, Examples) else "a text" for d in (self, other)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{where}: the data to validate on are {kinds[1]}, those to train on {kinds[0]}: "
                f"expected the same of both"
            )
        seq = max(self.seq, other.seq)
        for part in (self.train, self.test, other.train):
            if isinstance(part, Examples):
                part.seq = seq
        notes, mapped = self.notes + other.notes, (*self.mapped, *other.mapped)
        return replace(self, valid=other.train, seq=seq, notes=notes, mapped=mapped)


def read(path: str | Path, encoder: Encoder, seq: int | ReadOptions, **more: Any) -> Dataset:
    """Read data for windows of seq tokens. Raises DataError, with file and line.

    ``seq`` is all ReadOptions; or a number, and ``more`` are others by name: vocab_size at least.
    Where no example is as long the windows are shorter: as long as the longest, or, where examples
    share them (``packing``), as all together. Without a valid.jsonl some of the training
    examples, drawn by the seed, become the validation part: see ``ReadOptions.holdout``.
    """
    how = ReadOptions.of(seq, more)
    path = Path(path)
    tokens = read_binary(path, how.seq, vocab_size=how.vocab_size, holdout=how.holdout)
    if tokens is not None:
        return _of_windows(tokens, how.seq)
    if path.suffix == ".txt" and not path.is_dir():
        return long_text(path, encoder, how)
    reader = Reader(encoder, how)
    if path.is_dir() and (whole := part_of(path, TRAIN)) is not None:
        train = reader.read(whole)
        valid, test = (
            None if part is None else reader.read(part)
            for part in (part_of(path, VALID), part_of(path, TEST))
        )
    elif path.is_dir() and not is_container(path):
        names = sorted(entry.name for entry in path.iterdir())
        found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise DataError(f"{path}: expected {TRAIN} in it; got {found or 'an empty folder'}")
    elif path.is_dir():
        reader.how = replace(how, store=None)
        train, valid, test = reader.read(path), None, None
    elif is_container(path) or not path.exists():
        train, valid, test = reader.read(path), None, None
    else:
        raise DataError(f"{path}: expected {KINDS}; got a {path.suffix or 'nameless'} file")
    if valid is None:
        train, valid, notes = split_off(path, train, how.seed, VALID, how.holdout)
        reader.notes += notes
    else:
        check_not_asked(path, how.holdout)
    parts = [part for part in (train, valid, test) if part is not None]
    needed = max(int(part.lengths.sum()) if how.packing else part.longest for part in parts)
    seq = min(how.seq, needed)
    for part in parts:
        part.seq = seq
    chats, mapped = bool(reader.roles), tuple(reader.mapped)
    return Dataset(train, valid, test, seq, reader.notes, chats, how.packing, mapped=mapped)


def read_all(
    path: str | Path, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> tuple[Examples, list[str]]:
    """Read all examples of a file, or of a folder of texts; and what became of them on the way.

    None are held out; ``seq`` and ``more`` are as ``read`` takes them.

    Raises DataError as ``read`` does.
    """
    reader = Reader(encoder, ReadOptions.of(seq, more))
    return reader.read(Path(path)), reader.notes


def measured_part(path: Path) -> Path:
    """Return the file of a folder that a model is measured on: its test part, or its valid part.

    A file is itself, and so is a folder of texts. Raises DataError for a folder without either.
    """
    if not path.is_dir():
        return path
    found = part_of(path, TEST) or part_of(path, VALID)
    if found is None and (part_of(path, TRAIN) is not None or not is_container(path)):
        raise DataError(
            f"{path}: expected {TEST} or {VALID} in it, or texts (.txt, .md): there are none; or "
            f"name the file"
        )
    return found or path


def prompts(path: str | Path) -> Iterator[tuple[str, str | list[dict[str, Any]]]]:
    """Yield where each prompt of a .jsonl file is, and the prompt: a text, or messages.

    A line has the key "prompt", or "messages". Raises DataError, with file and line.
    """
    for line, row in rows(Path(path), silent):
        where = where_of(Path(path), line)
        if ("prompt" in row) == ("messages" in row):
            raise DataError(f"{where}: expected prompt, or messages; got {keys_of(row)}")
        if "prompt" in row:
            yield where, string_of(where, row, "prompt")
        else:
            yield where, checked_messages(where, row["messages"])


def long_text(
    path: str | Path | None, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> Dataset:
    """Return windows of seq tokens of a text, those of its last tenth for validation.

    Without a path, of the text that ships with Python. ``seq`` and ``more`` are as ``read`` has
    them. A text of bytes that has a ``store`` to go to stays where it is, and is mapped. Raises
    DataError if the text is too short, or an id is no token of the vocabulary.
    """
    how = ReadOptions.of(seq, more)
    return _of_windows(read_windows(path, encoder, how), how.seq)


def _of_windows(found: Windows, seq: int) -> Dataset:
    return Dataset(*found.parts, None, seq, found.notes, source=found.source, mapped=found.mapped)


def documents(
    path: str | Path | None, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> Dataset:
    """Return windows of a text that is documents, with a separator between them.

    Windows do not look from one document into another (``toynn.data.documents``). Each has BOS and
    EOS as an example has them; where there is no EOS, it ends with the separator. The last tenth of
    the tokens is for validation. ``seq`` and ``more`` are as ``read`` takes them. Raises DataError
    if it is no text, has no such separator or too few tokens, or if an id is no token of the
    vocabulary.
    """
    how = ReadOptions.of(seq, more)
    separator = how.separator
    if path is not None and (Path(path).is_dir() or Path(path).suffix in (".jsonl", ".bin")):
        raise DataError(
            f"{path}: a separator of documents is for a text; expected a .txt file: each line of a "
            f".jsonl is a document already, packed with others, and a .bin file is one long text"
        )
    if path is None:
        corpus = Corpus.embedded()
        source = Source(corpus.name, len(corpus.text), corpus.sha256)
        text: Iterable[str] = [corpus.text.decode()]
        path, how = Path(corpus.name), replace(how, store=None)
    else:
        path = Path(path)
        before = Unchanged.of(path)
        sha256, size = looked_at(path)
        before.check()
        source = Source(str(path), size, sha256)
        text = blocks(path, how.progress)
    told = {"encoder": encoder.fingerprint, "vocab_size": how.vocab_size, "separator": separator}
    found, mapped = how.kept_in.documents(
        path, told, how.vocab_size, lambda: _parted(source.name, text, encoder, separator)
    )
    tail, note = tail_of(found.ids, how.seq, source, how.holdout)
    note += f"; {len(found.begins):,} documents, between which windows do not look"
    parts = found.parted(len(found) - tail)
    return Dataset(*parts, None, how.seq, [note], source=source, mapped=mapped)


def _parted(
    name: str, text: Iterable[str], encoder: Encoder, separator: str
) -> Iterator[NDArray[np.int32]]:
    """Yield the tokens of documents, many of which are encoded together."""
    begin = [encoder.bos] if encoder.add_bos and encoder.bos is not None else []
    end, kept = ([], separator) if encoder.eos is None else ([encoder.eos], "")
    waiting: list[tuple[str, bool]] = []
    count = length = 0
    for part in chain(parted(text, separator) if separator else [""], (None,)):
        if part:
            waiting.append((part + kept, False))
            length += len(part)
        count += part is not None
        if (length >= TOGETHER or part is None) and waiting:
            for ids in encoder.encode_many(waiting):
                if document := [*begin, *ids, *end]:
                    yield np.array(document, np.int32)
            waiting, length = [], 0
    if count < 2:
        raise DataError(
            f"{name}: expected documents with {separator!r} between them; it is not in the text: "
            f"give what stands there, or none for a text that is one document"
        )
