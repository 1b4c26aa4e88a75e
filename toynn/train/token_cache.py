"""Tokens on the disk, made once: what a text became with a tokenizer, mapped by every run after.

    tokens/<name>-<key>/
        table.json      what it was made of, how many numbers each column has
        ids.bin, ...    the columns, little-endian, one number behind another

The key is a hash of the file's bytes and of all that its tokens depend on, so that a file or a
tokenizer that has changed finds nothing. A folder is filled under a temporary name: it is there as
a whole, or not at all. Nobody removes one: that is for whoever needs the room.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.digest import digest
from toynn.data.documents import Documents
from toynn.data.examples import Columns, Examples
from toynn.data.store import FillExamples, FillTokens
from toynn.data.stream import Unchanged
from toynn.errors import CheckpointError, DataError
from toynn.formats.files import Writer, finish, open_new
from toynn.formats.folders import new_folder
from toynn.formats.objects import read_object

__all__ = ["TokenCache"]

FORMAT = 1
TABLE = "table.json"
EXAMPLES = {"ids": "<i4", "learned": "|u1", "begins": "<i8"}
KEY = 24  # digits

Facts = dict[str, Any]
Table = dict[str, NDArray[Any]]


class TokenCache:
    """A folder of tokens, for ``store`` of `toynn.data.jsonl.read`: see `toynn.data.store`.

    ``tell`` is told of tokens that are not whole, and are made again. Raises CheckpointError where
    they cannot be written, DataError for a file that cannot be read or changes meanwhile.
    """

    def __init__(self, folder: str | Path, tell: Callable[[str], object] = warnings.warn) -> None:
        self._folder, self._tell = Path(folder), tell

    def examples(
        self, path: Path, told: dict[str, Any], empty: Examples, fill: FillExamples
    ) -> tuple[Examples, dict[str, Any]]:
        """Return the examples of a file, like ``empty``, and what else is to be known of them.

        Raises CheckpointError and DataError as the class does.
        """

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            made = Examples(
                empty.seq,
                keep_end=empty.keep_end,
                columns=Columns(*(columns[name] for name in EXAMPLES)),
            )
            columns["begins"].append(0)
            return fill(made)

        table, facts = self._table(path, {"kind": "examples", **told}, EXAMPLES, make)
        columns = Columns(*(table[name] for name in EXAMPLES))
        return Examples.of(columns, empty.seq, keep_end=empty.keep_end), facts

    def tokens(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> NDArray[np.integer[Any]]:
        """Return the tokens of a file, two bytes each where the vocabulary allows.

        Raises DataError for ids that are not of the vocabulary, and as the class does.
        """

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            for ids in fill():
                columns["ids"].extend(_fitting(path, ids, vocab_size))
            return {}

        table, _ = self._table(path, {"kind": "tokens", **told}, {"ids": _token(vocab_size)}, make)
        return table["ids"]

    def documents(
        self, path: Path, told: dict[str, Any], vocab_size: int, fill: FillTokens
    ) -> Documents:
        """Return the documents of a file. Raises what ``tokens`` does."""
        types = {"ids": _token(vocab_size), "begins": "<i8"}

        def make(columns: Mapping[str, "_Column"]) -> Facts:
            for ids in fill():
                columns["begins"].append(columns["ids"].count)
                columns["ids"].extend(_fitting(path, ids, vocab_size))
            return {}

        table, _ = self._table(path, {"kind": "documents", **told}, types, make)
        return Documents(table["ids"], table["begins"])

    def _table(
        self,
        path: Path,
        told: dict[str, Any],
        types: Mapping[str, str],
        make: Callable[[Mapping[str, "_Column"]], Facts],
    ) -> tuple[Table, Facts]:
        """Return columns, and what is to be known of them: those that are here, or new ones."""
        before = Unchanged.of(path)
        made_of = {"format": FORMAT, "sha256": digest(path), "types": dict(types), **told}
        text = json.dumps(made_of, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:KEY]
        folder = self._folder / f"{path.name[:100]}-{key}"
        if folder.is_dir():
            try:
                return _opened(folder, types)
            except DataError as error:
                self._tell(f"{error}; it is made again")
        with new_folder(folder, CheckpointError, replace=True) as new, ExitStack() as stack:
            columns = {
                name: _Column(stack.enter_context(open_new(new.path / f"{name}.bin")), dtype)
                for name, dtype in types.items()
            }
            facts = make(columns)
            before.check()
            for column in columns.values():
                finish(column.file)
            counts = {name: column.count for name, column in columns.items()}
            table = {"source": str(path), **made_of, "counts": counts, "facts": facts}
            table["sum"] = _sum(table)
            new.write(TABLE, json.dumps(table, indent=1).encode())
        return _opened(folder, types)


class _Column:
    """Numbers that are written to a file."""

    def __init__(self, file: Writer, dtype: str) -> None:
        self.file, self.count = file, 0
        self._as_array = partial(np.asarray, dtype=dtype)

    def append(self, number: int) -> None:
        """Add one."""
        self.extend((number,))

    def extend(self, numbers: Any) -> None:
        """Add some."""
        array = self._as_array(numbers)
        self.file.write(array.tobytes())
        self.count += array.size


def _opened(folder: Path, types: Mapping[str, str]) -> tuple[Table, Facts]:
    """Map the columns of a folder. Raises DataError where one is not as its table says."""
    table = read_object(folder / TABLE)
    if table.pop("sum", None) != _sum(table):
        raise DataError(f"{folder / TABLE}: damaged: its sum is another one")
    columns: Table = {}
    for name, dtype in types.items():
        path, count = folder / f"{name}.bin", table["counts"][name]
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path}: cannot read: {error.strerror}") from error
        if size != count * np.dtype(dtype).itemsize:
            raise DataError(f"{path}: expected {count} numbers; got {size} bytes")
        columns[name] = np.memmap(path, dtype, "r") if size else np.empty(0, dtype)
    return columns, table["facts"]


def _sum(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _token(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 2**16 else "<i4"


def _fitting(path: Path, ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    """Return ids, which must be of the vocabulary: others would be cut to two bytes."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise DataError(
            f"{path}: expected token ids of 0..{vocab_size - 1}; got {int(ids.max())}: the "
            "tokenizer is not the model's"
        )
    return ids
