"""Data for fine-tuning: a folder of train.jsonl, valid.jsonl and test.jsonl, a .jsonl, or a .txt.

Every line of a .jsonl file is an object, and all objects of a file have one format:

    {"text": "..."}                                             all of it has loss
    {"prompt": "...", "completion": "..."}                      the completion has loss
    {"messages": [{"role": "user", "content": "..."}, ...]}     the assistant's messages have loss

Alpaca's and ShareGPT's formats are read too. Objects may also be the rows of a table: .csv or .tsv,
and with pyarrow .parquet or .arrow. Or each .txt and .md file of a folder is one object. Files
ending with .gz and .zst are unpacked. Other keys and blank lines are ignored. A text and a
completion end with EOS; names of special tokens in them are plain text. mlx-lm reads the same
formats and file names. A .txt file is one long text, read in windows; a .bin file holds tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import TABLES, is_container, kind_of
from toynn.data._forms import EVERY
from toynn.data._rows import checked_messages, keys_of, rows, string_of, where_of
from toynn.data.batch import Batch
from toynn.data.bounds import USUAL, Bounds
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
    "parts_of",
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
    """Training and validation data, examples or a long text, and notes for the user."""

    train: Examples | Documents | Tokens
    valid: Examples | Documents | Tokens
    test: Examples | None
    seq: int
    notes: list[str]  # lines for the user
    chats: bool = False  # whether the examples are conversations
    packing: bool = False  # whether a row of a batch is several examples
    source: Source | None = None  # the long text
    mapped: Mapped = ()

    def check_unchanged(self) -> None:
        """Raise DataError if a mapped file has changed since it was opened."""
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
        """Return endless training batches, with a `state` to resume from."""
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
        """Return all of the test part; without one, no batches."""
        return [] if self.test is None else self._in_order(self.test, batch)

    def _in_order(self, part: Examples, batch: int, max_batches: int | None = None) -> list[Batch]:
        order = packed_in_order if self.packing else examples_in_order
        return order(part, batch, max_batches)

    def with_valid(self, other: "Dataset", where: str) -> "Dataset":
        """Return these data with the training part of others as the validation part.

        Raises DataError if one is examples and the other a text.
        """
        kinds = ["examples" if isinstance(d.train, Examples) else "a text" for d in (self, other)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{where}: the validation data are {kinds[1]}, the training data {kinds[0]}: "
                f"expected both to be the same"
            )
        seq = max(self.seq, other.seq)
        for part in (self.train, self.test, other.train):
            if isinstance(part, Examples):
                part.seq = seq
        notes, mapped = self.notes + other.notes, (*self.mapped, *other.mapped)
        return replace(self, valid=other.train, seq=seq, notes=notes, mapped=mapped)


def read(path: str | Path, encoder: Encoder, seq: int | ReadOptions, **more: Any) -> Dataset:
    """Read data for rows of seq tokens. Raises DataError, with file and line.

    ``seq`` is a ReadOptions, or a number with the other options in ``more`` (at least vocab_size).
    If no example is that long, rows are shorter: as long as the longest example, or with
    ``packing`` as all examples together. Without a valid.jsonl, training examples that the seed
    draws become the validation part: see ``ReadOptions.holdout``.
    """
    how = ReadOptions.of(seq, more)
    path = Path(path)
    tokens = read_binary(path, how.seq, vocab_size=how.vocab_size, holdout=how.holdout)
    if tokens is not None:
        return _of_windows(tokens, how.seq)
    if path.suffix == ".txt" and not path.is_dir():
        return long_text(path, encoder, how)
    reader = Reader(encoder, how)
    files = parts_of(path)
    if path.is_dir() and part_of(path, TRAIN) is None:  # a folder of texts
        reader.how = replace(how, store=None)
    known = {name: reader.read(file) for name, file in files.items()}
    train, valid, test = known["train"], known.get("valid"), known.get("test")
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


def parts_of(path: Path) -> dict[str, Path]:
    """Return the file of each part of the data; without parts, all data are "train".

    Raises DataError for data that are not rows.
    """
    if path.is_dir() and (whole := part_of(path, TRAIN)) is not None:
        others = {"valid": part_of(path, VALID), "test": part_of(path, TEST)}
        return {"train": whole} | {name: file for name, file in others.items() if file is not None}
    if is_container(path) or not path.exists():
        return {"train": path}
    if not path.is_dir():
        raise DataError(f"{path}: expected {KINDS}; got a {path.suffix or 'nameless'} file")
    names = sorted(entry.name for entry in path.iterdir())
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    other = next((each for each in names if kind_of(Path(each)) == ".jsonl"), None)
    name = f": name a file: {path / other}" if other else ""
    if {"config.toml", "metrics.jsonl"} <= {*names}:
        name = ": this is the folder of a run, not data"
    raise DataError(f"{path}: expected {TRAIN} in it; got {listed or 'an empty folder'}{name}")


def read_all(
    path: str | Path, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> tuple[Examples, list[str]]:
    """Read all examples of a file, or of a folder of texts; return them and notes.

    None are held out; ``seq`` and ``more`` are those of ``read``.

    Raises DataError as ``read`` does.
    """
    reader = Reader(encoder, ReadOptions.of(seq, more))
    return reader.read(Path(path)), reader.notes


def measured_part(path: Path) -> Path:
    """Return the file of a folder to evaluate on: its test part, or else its validation part.

    A file or a folder of texts is returned as it is. Raises DataError for any other folder.
    """
    if not path.is_dir():
        return path
    part = part_of(path, TEST) or part_of(path, VALID)
    if part is None and (part_of(path, TRAIN) is not None or not is_container(path)):
        raise DataError(
            f"{path}: expected {TEST} or {VALID} in it, or texts (.txt, .md); it has none: name "
            f"the file"
        )
    return part or path


def prompts(
    path: str | Path, columns: Mapping[str, str] = MappingProxyType({}), bounds: Bounds = USUAL
) -> Iterator[tuple[str, str | list[dict[str, Any]], dict[str, Any]]]:
    """Yield the place of each prompt in a .jsonl file or a table, the prompt, and other columns.

    A prompt is a string or messages, under the key "prompt"; or messages under "messages".
    ``columns`` has the data's column for each field that has another name there.

    Raises DataError, with file and line.
    """
    for line, row in rows(Path(path), silent, columns, bounds, EVERY):
        where, others = where_of(Path(path), line), dict(row)
        if ("prompt" in row) == ("messages" in row):
            raise DataError(f"{where}: expected prompt, or messages; got {keys_of(row)}")
        prompt = others.pop("prompt" if "prompt" in row else "messages")
        if "prompt" in row and not isinstance(prompt, list):
            yield where, string_of(where, row, "prompt"), others
        else:
            yield where, checked_messages(where, prompt), others


def long_text(
    path: str | Path | None, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> Dataset:
    """Return windows of seq tokens of a text; the last tenth of the text is for validation.

    Without a path it is the text that ships with Python. ``seq`` and ``more`` are those of
    ``read``. With a ``store``, a text whose tokens are bytes is mapped in place. Raises DataError
    if the text is too short, or an id is not below the vocabulary size.
    """
    how = ReadOptions.of(seq, more)
    return _of_windows(read_windows(path, encoder, how), how.seq)


def _of_windows(text: Windows, seq: int) -> Dataset:
    return Dataset(*text.parts, None, seq, text.notes, source=text.source, mapped=text.mapped)


def documents(
    path: str | Path | None, encoder: Encoder, seq: int | ReadOptions, **more: Any
) -> Dataset:
    """Return windows of a text that is made of documents with a separator between them.

    Tokens attend only within their document (``toynn.data.documents``). Each document has BOS and
    EOS as an example has; without an EOS token it ends with the separator. The last tenth of the
    tokens is for validation. ``seq`` and ``more`` are those of ``read``. Raises DataError for a
    file that is not a text, without such a separator, or with too few tokens; and for an id that is
    not below the vocabulary size.
    """
    how = ReadOptions.of(seq, more)
    separator = how.separator
    if path is not None and (Path(path).is_dir() or Path(path).suffix in (".jsonl", ".bin")):
        raise DataError(
            f"{path}: a separator of documents needs a text: expected a .txt file. Each line of a "
            f".jsonl file is a document of its own, and a .bin file is one long text"
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
    key = {"encoder": encoder.fingerprint, "vocab_size": how.vocab_size, "separator": separator}
    tokens, mapped = how.kept_in.documents(
        path, key, how.vocab_size, lambda: _parted(source.name, text, encoder, separator)
    )
    tail, note = tail_of(tokens.ids, how.seq, source, how.holdout)
    note += f"; {len(tokens.begins):,} documents; attention stays within each"
    parts = tokens.parted(len(tokens) - tail)
    return Dataset(*parts, None, how.seq, [note], source=source, mapped=mapped)


def _parted(
    name: str, text: Iterable[str], encoder: Encoder, separator: str
) -> Iterator[NDArray[np.int32]]:
    """Yield the tokens of each document; many documents are encoded at once."""
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
            f"name the separator that is there, or none for a text that is one document"
        )
