"""Cache tokens on disk, made once and mapped by every later run.

    tokens/<name>-<key>/
            table.json      the source and settings, the length and SHA-256 of each column
            ids.bin, ...    the columns: little-endian numbers

The key is a hash of the file's bytes and of everything that its tokens depend on. So a changed file
or tokenizer has another key. A folder is filled under a temporary name: it is complete or absent.
toynn never removes one; delete old folders when you need the space.

Every column is compared with its SHA-256 when it is opened. A damaged folder is made again, with a
message. A column ``ids`` of LARGE bytes and more is compared in a thread. The first check of the
data, before the first evaluation, waits for that thread. Damage is then an error, since batches may
have been drawn already. Later checks detect writes to a file.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.digest import digest
from toynn.data.documents import Documents
from toynn.data.examples import Columns, Examples
from toynn.data.splits import files_of
from toynn.data.store import FillExamples, FillTokens, Mapped, check_ids
from toynn.errors import CheckpointError, DataError
from toynn.formats.files import Writer, finish, open_new
from toynn.formats.folders import new_folder
from toynn.formats.objects import read_object
from toynn.system.reading import Unchanged, open_file, readable

FORMAT = 1
TABLE = "table.json"
IDS, BEGINS = "ids", "begins"
EXAMPLES = {IDS: "<i4", "learned": "|u1", BEGINS: "<i8"}
KEY = 24  # hexadecimal digits
LARGE = 2**30  # bytes of ids: SHA-256 takes a second or two

Facts = dict[str, Any]
#: The facts that readers of examples need.
FACTS = frozenset(("labels", "cut", "dropped", "roles"))
Table = dict[str, NDArray[Any]]


class TokenCache:
    """A folder of tokens, for the ``store`` of ReadOptions: see `toynn.data.store`.

    ``tell`` is called when damaged tokens are made again. Raises CheckpointError if tokens cannot
    be written, DataError for a file that cannot be read or changes meanwhile.
    """

    def __init__(self, folder: str | Path, tell: Callable[[str], object] = warnings.warn) -> None:
        self._folder, self._tell = Path(folder), tell

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any], Mapped]:
        """Return a file's examples, with the settings of ``empty``, and facts about them.

        Raises CheckpointError and DataError as the class does.
        """

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            written = Examples(
                empty.seq,
                keep_end=empty.keep_end,
                columns=Columns(*(columns[name] for name in EXAMPLES)),
            )
            columns[BEGINS].append(0)
            return fill(written)

        entry = self._entry(path, {"kind": "examples", **told}, EXAMPLES, make)
        columns = Columns(*(entry.columns[name] for name in EXAMPLES))
        examples = Examples.of(columns, empty.seq, keep_end=empty.keep_end)
        return examples, entry.facts, (entry.watched,)

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[NDArray[np.integer[Any]], Mapped]:
        """Return the tokens of a file, two bytes each if the vocabulary allows.

        Raises DataError for ids outside the vocabulary, and as the class does.
        """

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            for ids in fill():
                check_ids(f"{path}", ids, vocab_size)  # else they would be cut to two bytes
                columns[IDS].extend(ids)
            return {}

        entry = self._entry(path, {"kind": "tokens", **told}, {IDS: _token(vocab_size)}, make)
        return entry.columns[IDS], (entry.watched,)

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> tuple[Documents, Mapped]:
        """Return the documents of a file. Raises what ``tokens`` does."""
        types = {IDS: _token(vocab_size), BEGINS: "<i8"}

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            for ids in fill():
                check_ids(f"{path}", ids, vocab_size)
                columns[BEGINS].append(columns[IDS].count)
                columns[IDS].extend(ids)
            return {}

        entry = self._entry(path, {"kind": "documents", **told}, types, make)
        return Documents(entry.columns[IDS], entry.columns[BEGINS]), (entry.watched,)

    def _entry(
        self,
        path: Path,
        told: dict[str, Any],
        types: Mapping[str, str],
        make: Callable[[Mapping[str, "_Column"]], Facts],
    ) -> "_Entry":
        """Return the cached columns and their facts; make them if they are not cached."""
        before = [Unchanged.of(each) for each in files_of(path)]
        made_of = {"format": FORMAT, "sha256": digest(path), "types": dict(types), **told}
        text = json.dumps(made_of, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:KEY]
        folder = self._folder / f"{path.name[:100].replace('*', '_')}-{key}"
        if folder.is_dir():
            try:
                return _opened(folder, types, json.loads(text))
            except DataError as error:
                self._tell(f"{error}; the tokens of {path} are made again")
        with new_folder(folder, CheckpointError, replace=True) as new, ExitStack() as stack:
            columns = {
                name: _Column(stack.enter_context(open_new(new.path / f"{name}.bin")), dtype)
                for name, dtype in types.items()
            }
            facts = make(columns)
            for file in before:
                file.check()
            for column in columns.values():
                finish(column.file)
            table = {"source": str(path), **made_of, "facts": facts}
            table["counts"] = {name: column.count for name, column in columns.items()}
            table["sums"] = {name: column.sum.hexdigest() for name, column in columns.items()}
            table["sum"] = _sum(table)
            new.write(TABLE, json.dumps(table, indent=1).encode())
        return _opened(folder, types, json.loads(text))


class _Column:
    """A file of numbers that is being written."""

    def __init__(self, file: Writer, dtype: str) -> None:
        self.file, self.count, self.sum = file, 0, hashlib.sha256()
        self._as_array = partial(np.asarray, dtype=dtype)

    def append(self, number: int) -> None:
        """Append one number."""
        self.extend((number,))

    def extend(self, numbers: Any) -> None:
        """Append several numbers."""
        array = self._as_array(numbers)
        data = array.tobytes()
        self.file.write(data)
        self.sum.update(data)
        self.count += array.size


@dataclass(frozen=True)
class _Entry:
    """An open folder of tokens."""

    columns: Table
    facts: Facts
    watched: "_Contents"


@dataclass(frozen=True)
class _File:
    """A column's open file, and its expected SHA-256."""

    state: Unchanged
    file: BufferedReader
    sum: str

    def compare(self) -> None:
        """Raise DataError if the contents have another SHA-256."""
        path = self.state.path
        with readable(path):
            self.file.seek(0)
            hashed = hashlib.file_digest(self.file, "sha256").hexdigest()
        if hashed != self.sum:
            raise DataError(
                f"{path}: damaged: expected contents with the SHA-256 {self.sum[:12]}..., as "
                f"{TABLE} says; got {hashed[:12]}..."
            )


class _Contents:
    """The mapped columns of a folder."""

    def __init__(self, folder: Path, states: list[Unchanged]) -> None:
        self._folder, self._states = folder, states
        self._thread: Thread | None = None
        self._damage: DataError | None = None

    def compare_later(self, column: _File, files: ExitStack) -> None:
        """Compare a column in a thread, then close all ``files``."""

        def compare() -> None:
            with files:
                try:
                    column.compare()
                    self._damage = None
                except DataError as error:
                    self._damage = error

        path = column.state.path
        self._damage = DataError(f"{path}: its contents were not compared")  # unless they are
        self._thread = Thread(target=compare, name=f"SHA-256 of {path}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise DataError if a column is damaged, or was written to since it was opened.

        Waits for the comparison in the thread.
        """
        if self._thread is not None:
            self._thread.join()
        todo = f"; remove {self._folder} and start again: the tokens are made again"
        try:
            for state in self._states:
                state.check_written()
        except DataError as error:
            raise DataError(f"{error}{todo}") from error
        if self._damage is not None:
            raise DataError(f"{self._damage}{todo}") from self._damage


def _opened(folder: Path, types: Mapping[str, str], made_of: Mapping[str, Any]) -> _Entry:
    """Map the columns of a folder. Raises DataError if they contradict the table."""
    path = folder / TABLE
    table = read_object(path, links=False)
    if table.pop("sum", None) != _sum(table):
        raise DataError(f"{path}: damaged: its checksum is wrong")
    if "sums" not in table:
        raise DataError(f"{path}: an older toynn wrote it, without checksums of the columns")
    if any(table.get(name) != value for name, value in made_of.items()):
        raise DataError(f"{path}: it was made from another file, tokenizer or setting")
    counts, sums, facts = (table.get(name) for name in ("counts", "sums", "facts"))
    if not (
        isinstance(counts, dict)
        and isinstance(sums, dict)
        and isinstance(facts, dict)
        and all(type(counts.get(name)) is int and name in sums for name in types)
    ):
        raise DataError(f"{path}: damaged: expected counts and sums of {', '.join(types)}")
    if types == EXAMPLES and not facts.keys() >= FACTS:
        raise DataError(f"{path}: damaged: expected facts {', '.join(sorted(FACTS))}")
    columns: Table = {}
    with ExitStack() as stack:
        files: dict[str, _File] = {}
        for name, dtype in types.items():
            path, count = folder / f"{name}.bin", counts[name]
            file = stack.enter_context(open_file(path, links=False))
            state = Unchanged.of(path, file=file)
            if state.size != count * np.dtype(dtype).itemsize:
                raise DataError(f"{path}: expected {count} numbers; got {state.size} bytes")
            empty = np.empty(0, dtype)
            columns[name] = np.memmap(file, dtype, "r", shape=(count,)) if count else empty
            files[name] = _File(state, file, sums[name])
        _check_places(folder, columns)
        contents = _Contents(folder, [file.state for file in files.values()])
        ids = files[IDS]
        for each in files.values():
            if each is not ids or ids.state.size < LARGE:
                each.compare()
        if ids.state.size >= LARGE:
            contents.compare_later(ids, stack.pop_all())
    return _Entry(columns, facts, contents)


def _check_places(folder: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise DataError if examples or documents begin or end outside of the tokens."""
    size, begins = len(columns[IDS]), columns.get(BEGINS, np.empty(0, np.int64))
    within = not len(begins) or (begins[0] == 0 and int(begins[-1]) <= size)
    if not within or (begins[1:] < begins[:-1]).any():
        raise DataError(
            f"{folder / BEGINS}.bin: damaged: expected places in {size} tokens, in order"
        )
    if any(len(each) != size for name, each in columns.items() if name not in (IDS, BEGINS)):
        raise DataError(
            f"{folder}: damaged: expected as many numbers as tokens, {size}, in each file"
        )


def _sum(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _token(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 2**16 else "<i4"
