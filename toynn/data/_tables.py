"""Read rows of Parquet and Arrow files with pyarrow, a few at a time, in bounded memory.

A file declares how much its batches and pages unpack to: that is checked first. A column may share
one string among its rows (dictionaries, views). Each row's object then has its own copy, which is
counted too.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from toynn.data._declared import arrow_bytes, parquet_bytes
from toynn.data.bounds import Bounds
from toynn.data.stream import Progress
from toynn.errors import ConfigError, DataError, ToynnError
from toynn.system.reading import open_file

PARQUET_ROWS = 2**8  # in a batch
AT_A_TIME = 2**12  # rows of a batch that become objects at once, at most
PART = 2**24  # bytes of these objects, at most
VALUE = 8  # bytes of an object's place in a list, in addition to its contents


def arrow_rows(
    path: Path, kind: str, progress: Progress, read: Collection[str], bounds: Bounds
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the values of each row; columns that are not in ``read`` are None.

    ``kind`` is the file's suffix. Raises DataError for a damaged file or one that unpacks to too
    much, ConfigError where pyarrow is missing.
    """
    arrow = pyarrow_for(path)
    size = os.path.getsize(path) if path.exists() else 0
    with open_file(path) as file:
        try:
            row = done = 0
            for names, batch in _batches(path, kind, arrow, file, read, bounds):
                # pyarrow trusts the offsets, sizes, indices and strings of a file. Without this
                # check it would read beyond its buffers, and crash the process.
                batch.validate(full=True)
                done += _as_objects(path, arrow, batch)
                bounds.check_unpacked(path, size, done)
                for part in _parts(path, arrow, batch, row, bounds):
                    for fields in part.to_pylist():
                        row += 1
                        values = ((name, fields.get(name)) for name in names)
                        yield row, {k: v for k, v in values if v is not None or k not in read}
            progress(size, size)
        except ToynnError:
            raise
        except (
            arrow.ArrowException,
            ArithmeticError,  # a date, duration or decimal that Python cannot represent
            LookupError,  # an unknown time zone
            MemoryError,
            OSError,
            ValueError,  # a name of a column or time zone that is not UTF-8
        ) as error:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"{path}: cannot read as {kind[1:]}: {words}") from error


def _batches(
    path: Path, kind: str, arrow: Any, file: BinaryIO, read: Collection[str], bounds: Bounds
) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of all columns, and batches of rows of the columns that are read.

    Raises DataError for a name that comes twice.
    """
    if kind == ".parquet":
        opened = import_module("pyarrow.parquet").ParquetFile(file)
        schema = opened.schema_arrow
        columns = [name for name in schema.names if name in read]
        _check_parquet(path, opened.metadata, bounds)
        _check_declared(path, parquet_bytes(file, read), bounds)
        # A name also selects the columns that begin with it and a dot. A string that a file stores
        # once, in a dictionary, takes memory in each row of a batch.
        batches = opened.iter_batches(columns=columns, batch_size=PARQUET_ROWS)
    else:
        ipc = import_module("pyarrow.ipc")
        _check_declared(path, arrow_bytes(file), bounds)
        file.seek(0)
        try:
            opened = ipc.open_file(file)
            batches = (opened.get_batch(k) for k in range(opened.num_record_batches))
        except arrow.ArrowInvalid:
            file.seek(0)
            opened = batches = ipc.open_stream(file)
        schema = opened.schema
    names = schema.names
    _expect_once(path, "columns", names)
    for field in schema:
        if field.name in read:
            _expect_fields_once(path, arrow, field)
    for batch in batches:
        yield names, batch.select([name for name in names if name in read])


def _check_parquet(path: Path, metadata: Any, bounds: Bounds) -> None:
    """Raise DataError if the row groups declare that they unpack to too much.

    Sizes of single columns are not asked for: on a damaged file, pyarrow would crash the process.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    length = sum(max(group.total_byte_size, 0) for group in groups)
    bounds.check_unpacked(path, os.path.getsize(path), length)


def _check_declared(path: Path, declared: Iterator[int], bounds: Bounds) -> None:
    """Raise DataError if the declared sizes add up to more than a file may unpack to."""
    size, total = os.path.getsize(path), 0
    for length in declared:
        total += max(length, 0)
        bounds.check_unpacked(path, size, total)


def _parts(path: Path, arrow: Any, batch: Any, row: int, bounds: Bounds) -> Iterator[Any]:
    """Yield a few rows at a time: as objects they may be far larger than in their batch.

    ``row`` is the number of rows before the batch. Raises DataError for a row that is longer than
    a line may be.
    """
    ends = list(range(0, batch.num_rows, AT_A_TIME))[::-1]
    waiting = [batch.slice(begin, AT_A_TIME) for begin in ends]
    while waiting:
        part = waiting.pop()
        length = _as_objects(path, arrow, part)
        if part.num_rows > 1 and length > min(PART, bounds.line):
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
            continue
        bounds.check_line(f"{path}:{row + 1}", length)
        row += part.num_rows
        yield part


def _as_objects(path: Path, arrow: Any, batch: Any) -> int:
    """Return the least bytes that a batch takes when each row has its own copy of its values."""
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return VALUE * int(batch.num_rows) + sum(_size(path, arrow, *each) for each in columns)


def _size(path: Path, arrow: Any, name: str, column: Any) -> int:
    kind, types = column.type, arrow.types
    if isinstance(kind, arrow.BaseExtensionType):
        return _size(path, arrow, name, column.storage)
    size = VALUE * len(column)
    if types.is_dictionary(kind):
        if _is_text(types, kind.value_type):
            indices = column.indices.drop_null().to_numpy(zero_copy_only=False)
            return size + int(_lengths(types, column.dictionary)[indices].sum())
        if kind.value_type.num_fields == 0:
            return size
    elif _is_text(types, kind):
        return size + int(_lengths(types, column).sum())
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        if not len(column):
            return 0
        begin, end = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
        return size + _size(path, arrow, name, column.values.slice(begin, end - begin))
    elif types.is_fixed_size_list(kind):
        begin, length = (count * kind.list_size for count in (column.offset, len(column)))
        return size + _size(path, arrow, name, column.values.slice(begin, length))
    elif types.is_struct(kind):
        fields = (column.field(k) for k in range(kind.num_fields))
        return size + sum(_size(path, arrow, name, field) for field in fields)
    elif kind.num_fields == 0:
        return size + int(column.nbytes)
    raise DataError(
        f"{path}: expected texts, numbers, lists or structs in {name!r}; got {kind}, which toynn "
        "does not read: write the column as one of them"
    )


def _is_text(types: Any, kind: Any) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_string_view(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
    )


def _lengths(types: Any, column: Any) -> np.ndarray:
    """Return the bytes of each text of a column."""
    if types.is_string_view(column.type) or types.is_binary_view(column.type):
        views = np.frombuffer(column.buffers()[1] or b"", np.int32)[::4]  # a length, 3 others
        sizes = views[column.offset : column.offset + len(column)].astype(np.int64)
        return np.where(column.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    lengths = import_module("pyarrow.compute").binary_length(column).fill_null(0)
    return np.asarray(lengths, np.int64)


def _expect_once(path: Path, what: str, names: list[str]) -> None:
    for name, times in Counter(names).most_common(1):
        if times > 1:
            raise DataError(
                f"{path}: expected {what} with different names; {name!r} comes {times} times: "
                "rename all but one"
            )


def _expect_fields_once(path: Path, arrow: Any, field: Any) -> None:
    """Refuse a column that contains a struct with two fields of one name."""
    kinds = [field.type]
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, arrow.BaseExtensionType):
            kind = kind.storage_type
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
        inner = [kind.field(k) for k in range(kind.num_fields)]
        if arrow.types.is_struct(kind):
            _expect_once(path, f"fields of {field.name!r}", [each.name for each in inner])
            for each in inner:
                _expect_fields_once(path, arrow, each)
        else:
            kinds += [each.type for each in inner]


def pyarrow_for(path: Path) -> Any:
    """Return pyarrow, which reads the file. Raises ConfigError where it is missing."""
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading this file needs pyarrow, which is not installed: pip install pyarrow"
        ) from error
