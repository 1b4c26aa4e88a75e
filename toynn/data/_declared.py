"""Read the unpacked sizes that Arrow and Parquet files declare, before anything is unpacked.

pyarrow allocates as many bytes as a file declares, however many. This module reads only the sizes:
    Arrow      a FlatBuffer before each batch; the first 8 bytes of each compressed buffer
    Parquet    the header of each page, in Thrift's compact protocol
The walk ends where a file is damaged: pyarrow reads the same bytes afterwards, and says what is
wrong.
"""

import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

DAMAGED = (
    *(struct.error, LookupError, ValueError, OverflowError, RecursionError, MemoryError),
    *(TypeError, AttributeError),  # a field of another kind
)
BATCHES = (2, 3)  # Arrow's message types: a dictionary batch, a record batch
INDEX = 4  # bytes that each Parquet value takes in addition to its contents
HEADER = 2**12  # bytes: enough for most page headers; pyarrow refuses any longer than this:
LONGEST_HEADER = 2**24


def arrow_bytes(file: BinaryIO) -> Iterator[int]:
    """Yield how many bytes each compressed batch of an Arrow file or stream unpacks to."""
    size = os.fstat(file.fileno()).st_size
    with suppress(*DAMAGED):
        for at, length in _messages(file, size):
            table = _Table.root(_read(file, at, length))
            if table.number("B", 1) in BATCHES:
                batch = table.table(2)
                if table.number("B", 1) == BATCHES[0]:
                    batch = batch.table(1)
                if batch.place(3):  # compressed
                    yield _unpacked_buffers(file, at + length, batch)


def _messages(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield where each message's table begins, and its length: the batch follows it."""
    if _read(file, 0, 6) != b"ARROW1":
        at = 0
        while at < size:
            mark, length = struct.unpack("<Ii", _read(file, at, 8))
            if mark != 0xFFFFFFFF:  # the layout before Arrow 0.15
                mark, length, at = 0, mark, at - 4
            if length <= 0:
                return
            yield at + 8, length
            body = _Table.root(_read(file, at + 8, length)).number("q", 3)
            if body < 0:  # the walk would go backwards, perhaps for ever
                return
            at += 8 + length + body
        return
    (length,) = struct.unpack("<i", _read(file, size - 10, 4))
    footer = _Table.root(_read(file, size - 10 - length, length))
    for field in (2, 3):
        for at, length in footer.structs(field, "<qi12x"):
            (mark,) = struct.unpack("<I", _read(file, at, 4))
            begin = 8 if mark == 0xFFFFFFFF else 4
            yield at + begin, length - begin


def _unpacked_buffers(file: BinaryIO, body: int, batch: "_Table") -> int:
    """Return the sum of the sizes before each buffer; -1 means: not compressed."""
    total = 0
    for at, length in batch.structs(2, "<qq"):
        if length >= 8:
            (said,) = struct.unpack("<q", _read(file, body + at, 8))
            total += length if said < 0 else said
    return total


def _read(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


class _Table:
    """A FlatBuffer table: fields have numbers, and may be missing."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def place(self, field: int) -> int:
        """Return the offset of a field; 0 if it is missing."""
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + 4 + 2 * field)
        return self._at + offset if offset else 0

    def number(self, kind: str, field: int) -> int:
        place = self.place(field)
        return int(struct.unpack_from(f"<{kind}", self._data, place)[0]) if place else 0

    def _target(self, field: int) -> int:
        place = self.place(field)
        return place + int(struct.unpack_from("<I", self._data, place)[0])

    def table(self, field: int) -> "_Table":
        return _Table(self._data, self._target(field))

    def structs(self, field: int, kind: str) -> Iterator[tuple[Any, ...]]:
        if not self.place(field):
            return
        target = self._target(field)
        (count,) = struct.unpack_from("<I", self._data, target)
        size = struct.calcsize(kind)
        for k in range(count):
            yield struct.unpack_from(kind, self._data, target + 4 + size * k)


def parquet_bytes(file: BinaryIO, read: Collection[str]) -> Iterator[int]:
    """Yield how many bytes each page of the columns in ``read`` unpacks to."""
    size = os.fstat(file.fileno()).st_size
    with suppress(*DAMAGED):
        (length,) = struct.unpack("<I", _read(file, size - 8, 4))
        footer, _ = _fields(_read(file, size - 8 - length, length), 0)
        for group in footer[4]:
            for chunk in group[1]:
                column = chunk[3]
                if column[3][0].decode(errors="replace").partition(".")[0] in read:
                    yield from _pages(file, column)


def _pages(file: BinaryIO, column: dict[int, Any]) -> Iterator[int]:
    at, end = column[9], column.get(11, 0)  # offsets of the data and of the dictionary
    at = end if 0 < end < at else at
    end = at + column[7]
    with suppress(*DAMAGED):
        while at < end:
            try:
                page, length = _fields(_read(file, at, HEADER), 0)
            except (struct.error, IndexError):
                page, length = _fields(_read(file, at, LONGEST_HEADER), 0)
            values = max((page[k].get(1, 0) for k in (5, 7, 8) if k in page), default=0)
            yield page[2] + INDEX * values
            at += length + max(page[3], 0)


def _fields(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct in Thrift's compact protocol, and where the struct ends."""
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _integer(data, at)
        kind &= 15
        # In a struct, a boolean's value is its kind.
        fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 7:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == 8:
        length, at = _unsigned(data, at)
        return data[at : at + length], at + length
    if kind in (9, 10):
        count, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _unsigned(data, at)
        values = []
        for _ in range(count):
            element, at = _value(data, at, kind)
            values.append(element)
        return values, at
    if kind == 11:
        count, at = _unsigned(data, at)
        kinds, at = (data[at], at + 1) if count else (0, at)
        for k in range(2 * count):
            _, at = _value(data, at, kinds & 15 if k % 2 else kinds >> 4)
        return None, at
    if kind == 12:
        return _fields(data, at)
    raise ValueError(kind)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
