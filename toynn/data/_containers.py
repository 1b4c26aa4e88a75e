"""Read objects from JSON lines, tables or folders of texts; gzip and zstd are unpacked.

    .jsonl .json       a JSON object per line            .csv .tsv     a header, then rows
    .json              or one array of objects
    .parquet .arrow .feather   by pyarrow                 a folder of .txt and .md    {"text": ...}

Each object comes with its line or row number, or with the path of its file; of CSV with path, line
and row, since a row may have several lines. Rows are numbered from 1, after the header.
"""

import csv
import gzip
import json
import os
import re
import threading
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from toynn.data._arrays import array_items, begins_an_array
from toynn.data._tables import arrow_rows, pyarrow_for
from toynn.data.bounds import USUAL, Bounds
from toynn.data.stream import BOM, Progress, decoded
from toynn.errors import DataError
from toynn.system.reading import open_file, read_bytes

LINES = (".jsonl", ".json")
TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
TEXTS = (".txt", ".md")
COMPRESSED = (".gz", ".zst")
#: A folder with config.toml and one of these is a run's.
RUN, OF_RUN = "config.toml", ("metrics.jsonl", "run.json")
LISTED = 5  # most names in a note
_LIMIT = threading.RLock()  # held while csv's global limit is ours
Where = int | str
END = re.compile(r"\r\n|\n|\r(?!\Z)")  # of a line; a final \r may still get its \n
BLOCK = 2**20  # bytes of a table that are read at once


def kind_of(path: Path) -> str:
    """Return the suffix that says how a file is read, without .gz or .zst."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def is_container(path: Path) -> bool:
    """Return whether a path holds objects: lines, a table, or a folder of texts."""
    if path.is_dir():
        return any(True for _ in texts(path))
    return kind_of(path) in LINES + TABLES


def lines_of(
    path: Path, progress: Progress, bounds: Bounds
) -> Generator[tuple[int, bytes], None, None]:
    """Yield the number and the bytes of each line that is not blank. Raises DataError."""
    done = 0
    with _whole(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        unpacked = _unpacked(path, file, bounds)
        for line in count(1):
            if not (raw := unpacked.readline(bounds.line + 2)):  # 2: newline, 1 too many
                break
            bounds.check_line(f"{path}:{line}", len(raw.removesuffix(b"\n")))
            done += len(raw)
            if line % 1000 == 0 or done == size:
                progress(file.tell() if path.suffix in COMPRESSED else done, size)
            if line == 1:
                raw = raw.removeprefix(BOM)
            if raw.strip():
                yield line, raw


def is_array(path: Path) -> bool:
    """Return whether a .json file is one array, not an object per line. Raises DataError."""
    if kind_of(path) != ".json" or path.is_dir():
        return False
    with _whole(path), open_file(path) as file:
        return begins_an_array(_unpacked(path, file, USUAL))


def items_of(
    path: Path, progress: Progress, bounds: Bounds
) -> Generator[tuple[int, Any], None, None]:
    """Yield the number and the value of each item of an array. Raises DataError."""
    with _whole(path), open_file(path) as file:
        yield from array_items(path, _unpacked(path, file, bounds), progress, bounds)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Raise DataError where a file cannot be read or unpacked."""
    try:
        yield
    except EOFError as error:
        raise DataError(f"{path}: cannot read: its compressed data is cut short") from error
    except zlib.error as error:
        raise DataError(f"{path}: cannot read: its compressed data is damaged ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror or error}") from error


def _unpacked(path: Path, file: BinaryIO, bounds: Bounds) -> BinaryIO:
    if path.suffix not in COMPRESSED:
        return file
    if path.suffix == ".gz":
        stream: Any = gzip.GzipFile(fileobj=file)
    else:
        stream = pyarrow_for(path).CompressedInputStream(file, "zstd")
    return bounds.counted(path, os.fstat(file.fileno()).st_size, stream)


def table_rows(
    path: Path, progress: Progress, read: Collection[str], bounds: Bounds = USUAL
) -> Generator[tuple[Where, Mapping[str, Any]], None, None]:
    """Yield the rows of a table, or the texts of a folder, as objects.

    In Parquet and Arrow files, columns that are not in ``read`` are None. Raises DataError for a
    damaged file, ConfigError where pyarrow is missing.
    """
    if path.is_dir():
        yield from _folder(path)
    elif kind_of(path) in (".csv", ".tsv"):
        yield from _csv(path, progress, bounds)
    else:
        yield from arrow_rows(path, kind_of(path), progress, read, bounds)


def texts(folder: Path) -> Iterator[Path]:
    """Yield the paths of all texts below a folder, sorted; not those of hidden folders and runs."""
    for path in sorted(_files(folder)):
        if path.suffix in TEXTS and path.is_file():
            yield path


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden, nor in a hidden folder or a run's."""
    for at, folders, names in os.walk(folder):
        if RUN in names and not set(OF_RUN).isdisjoint(names):
            folders.clear()
        else:
            folders[:] = (each for each in folders if not each.startswith("."))
            yield from (Path(at, each) for each in names if not each.startswith("."))


def texts_note(folder: Path) -> str:
    """Return which texts of a folder are read, and which .jsonl files are not."""
    lines = sorted(each for each in _files(folder) if kind_of(each) == ".jsonl")
    note = f"read {_some(folder, list(texts(folder)))}"
    if lines:
        note += f"; not {_some(folder, lines)}: to train on such a file, name it: {lines[0]}"
    return note


def _some(folder: Path, paths: list[Path]) -> str:
    """Return the first names, and how many more there are."""
    names = ", ".join(path.relative_to(folder).as_posix() for path in paths[:LISTED])
    return names + (f" and {len(paths) - LISTED:,} more" if len(paths) > LISTED else "")


def _folder(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in texts(folder):
        try:
            text = read_bytes(path).removeprefix(BOM).decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: not UTF-8 text: byte 0x{error.object[error.start]:02x} at byte "
                f"{error.start}"
            ) from None
        if text.strip():
            yield str(path), {"text": text}


def _csv(path: Path, progress: Progress, bounds: Bounds) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with closing(_text_lines(path, progress, bounds)) as lines:
        delimiter = "\t" if kind_of(path) == ".tsv" else ","
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            rows = _bounded(reader, bounds.line)
            names = next(rows, None)
            if not names or len(set(names)) < len(names):
                raise DataError(f"{path}:1: expected column names, each once; got {names or []}")
            before = reader.line_num
            for row, values in enumerate(rows, 1):
                where, before = f"{path}:{before + 1} (row {row})", reader.line_num
                if len(values) not in (0, len(names)):
                    raise DataError(
                        f"{where}: expected {len(names)} columns, as the header has; got "
                        f"{len(values)}; the row ends on line {before}"
                    )
                if values:
                    yield where, dict(zip(names, values, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}: not CSV: {error} (line {reader.line_num})") from None


def _bounded(reader: Iterator[list[str]], limit: int) -> Iterator[list[str]]:
    """Yield rows; raise csv.Error for a field of more than ``limit`` characters.

    Python has one limit for the whole process, so it is set while each row is read.
    """
    values: list[str] | None = []
    while values is not None:
        with _LIMIT:
            before = csv.field_size_limit(limit)
            try:
                values = next(reader, None)
            finally:
                csv.field_size_limit(before)
        if values is not None:
            yield values


def _text_lines(path: Path, progress: Progress, bounds: Bounds) -> Generator[str, None, None]:
    """Yield the lines of a text with their line ends (of any kind). Raises DataError."""
    with _whole(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        unpacked = _unpacked(path, file, bounds)

        def blocks() -> Iterator[bytes]:
            yield unpacked.read(len(BOM)).removeprefix(BOM)
            while block := unpacked.read(BLOCK):
                yield block
                progress(file.tell(), size)

        rest, line = "", 1
        for text in decoded(path, blocks()):
            whole, end = rest + text, 0
            if "\n" not in text and "\r" not in whole[max(len(rest) - 1, 0) :]:
                bounds.check_line(f"{path}:{line}", len(whole))
                rest = whole
                continue
            for match in END.finditer(whole):
                bounds.check_line(f"{path}:{line}", match.end() - end)
                yield whole[end : match.end()]
                line, end = line + 1, match.end()
            rest = whole[end:]
            bounds.check_line(f"{path}:{line}", len(rest))
        if rest:
            yield rest


def plain(value: Any) -> Any:
    """Return a table's value; parse a string that is a JSON list."""
    if isinstance(value, str) and value[:1] == "[":
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return parsed if isinstance(parsed, list) else value
    return value
