"""Read the header of a GGUF file without trusting any byte of it.

    magic "GGUF", version u32, tensor count u64, key count u64
    per key:     key string, value type u32, value
    per tensor:  name string, dimension count u32, dimensions u64, type u32, offset u64
    padding to general.alignment (32), then the data; offsets are relative to its start

Everything is little-endian. A string is its length (u64) and its bytes, an array its element type
(u32), its count (u64) and its elements. Dimensions are innermost first: NumPy's order reversed.

Limits bound the time and memory of any file: below a second, and below the file's length plus 8
megabytes. Each limit is above what the largest models of 2026 need.

Source: docs/gguf.md of github.com/ggml-org/ggml.
"""

import mmap
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from toynn.formats.gguf.cursor import U32, U64, Cursor
from toynn.formats.gguf.strings import STRIDE, Strings
from toynn.formats.gguf.tensors import (
    MIN_TENSOR_BYTES,
    TensorInfo,
    place_tensors,
    read_tensors,
)

MAX_KEYS = 1 << 12
MAX_TENSORS = 1 << 13
MAX_STRINGS = 1 << 20  # in all arrays; Gemma 3's tokens and merges are 0.78 million
MAX_KEY_BYTES = 65535
MIN_KEY_BYTES = 8 + 1 + 4 + 1  # a key of one letter and a value of one byte

ALIGNMENT = 32  # if general.alignment is missing
MAX_ALIGNMENT = 1 << 16

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: dict[int, tuple[str, np.dtype[Any]]] = {
    0: ("UINT8", np.dtype("<u1")),
    1: ("INT8", np.dtype("<i1")),
    2: ("UINT16", np.dtype("<u2")),
    3: ("INT16", np.dtype("<i2")),
    4: ("UINT32", np.dtype("<u4")),
    5: ("INT32", np.dtype("<i4")),
    6: ("FLOAT32", np.dtype("<f4")),
    BOOL: ("BOOL", np.dtype("<u1")),
    10: ("UINT64", np.dtype("<u8")),
    11: ("INT64", np.dtype("<i8")),
    12: ("FLOAT64", np.dtype("<f8")),
}

#: First bytes of files that users mistake for GGUF files, and what those files are.
LOOKALIKES = {
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself with `git lfs pull`",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint",
    b"<": "a web page: was the download an error message?",
    b"lmgg": "GGML, a format before GGUF",
    b"fmgg": "GGMF, a format before GGUF",
    b"tjgg": "GGJT, a format before GGUF",
    b"algg": "GGLA, a format before GGUF",
    b"GG": "a format before GGUF",
}

Value = bool | int | float | str | Strings | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the metadata, its type (UINT32, or [INT32] for an array), and its offset."""

    value: Value
    type: str
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the data."""

    version: int
    entries: dict[str, Entry]
    tensors: dict[str, TensorInfo]
    alignment: int
    data_offset: int


def read_header(path: Path, data: mmap.mmap) -> Header:
    """Read everything before the data. Raises GGUFError."""
    cursor = Cursor(path, data)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensor count", MIN_TENSOR_BYTES, MAX_TENSORS)
    n_keys = cursor.count("key count", MIN_KEY_BYTES, MAX_KEYS)
    entries = _read_entries(cursor, n_keys)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    rows = read_tensors(cursor, n_tensors)
    data_offset = -(-cursor.at // alignment) * alignment
    tensors = place_tensors(cursor, rows, data_offset, alignment)
    return Header(version, entries, tensors, alignment, data_offset)


def _read_version(cursor: Cursor) -> int:
    begin = cursor.data[:32]
    if begin[:4] != b"GGUF":
        hints = [text for magic, text in LOOKALIKES.items() if begin.lstrip().startswith(magic)]
        if begin[8:9] == b"{":
            hints.insert(0, "a safetensors file")
        got = f"{begin[:4]!r}" + (f" ({hints[0]})" if hints else "")
        raise cursor.error(f"not a GGUF file ({cursor.size} bytes): magic", 0, b"GGUF", got)
    cursor.take("magic", 4)
    version = cursor.number("version", U32)
    if version not in (2, 3):
        # A small number of the other byte order has its bytes at the other end.
        swapped = version and version % (1 << 16) == 0
        hint = " (the file is big-endian: convert it to little-endian)" if swapped else ""
        raise cursor.error("version", 4, "2 or 3", f"{version}{hint}")
    return version


def _read_entries(cursor: Cursor, count: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    strings_left = MAX_STRINGS
    for index in range(count):
        begin = cursor.at
        key = cursor.name(f"key {index}", MAX_KEY_BYTES)
        if key in entries:
            raise cursor.error(f"key {index}", begin, "a new key", f"{key!r} again")
        entry = _read_value(cursor, key, strings_left)
        entries[key] = entry
        if isinstance(entry.value, Strings):
            strings_left -= len(entry.value)
    return entries


def _read_value(cursor: Cursor, key: str, strings_left: int) -> Entry:
    type_at = cursor.at
    type = cursor.number(f"type of {key}", U32)
    begin = cursor.at
    if type == STRING:
        text = cursor.string(key).decode("utf-8", "surrogateescape")
        return Entry(text, "STRING", begin)
    if type != ARRAY:
        _check_scalar(cursor, f"type of {key}", type_at, type, "8 STRING, 9 ARRAY")
        number = _read_numbers(cursor, key, type, 1)
        return Entry(number.item(), SCALARS[type][0], begin)
    element_type = cursor.number(f"element type of {key}", U32)
    if element_type == STRING:
        count = cursor.count(f"length of {key}", U64.size, strings_left)
        return Entry(_read_strings(cursor, key, count), "[STRING]", begin)
    _check_scalar(cursor, f"element type of {key}", begin, element_type, "8 STRING")
    name, dtype = SCALARS[element_type]
    count = cursor.count(f"length of {key}", dtype.itemsize)
    return Entry(_read_numbers(cursor, key, element_type, count), f"[{name}]", begin)


def _check_scalar(cursor: Cursor, what: str, offset: int, type: int, others: str) -> None:
    if type not in SCALARS:
        types = ", ".join(f"{id} {name}" for id, (name, _) in SCALARS.items())
        raise cursor.error(what, offset, f"{types}, {others}", type)


def _read_numbers(cursor: Cursor, key: str, type: int, count: int) -> NDArray[Any]:
    """Return a copy of the next numbers: in the file they may be unaligned."""
    dtype = SCALARS[type][1]
    begin = cursor.take(key, count * dtype.itemsize)
    numbers: NDArray[Any] = np.frombuffer(cursor.data, dtype, count, begin).copy()
    if type != BOOL:
        return numbers
    if count and numbers.max() > 1:
        wrong = int(numbers.argmax())
        raise cursor.error(key, begin + wrong, "a bool, 0 or 1", numbers[wrong])
    return numbers.view(np.bool_)


def _read_strings(cursor: Cursor, key: str, count: int) -> Strings:
    """Read strings. Bytes that are not UTF-8, as in byte tokens, are kept."""
    # Opening a file with a vocabulary spends its time here, so this does not call the cursor.
    data, begin, at = cursor.data, cursor.at, cursor.at
    last, unpack = cursor.end - U64.size, U64.unpack_from
    marks = array("I")
    for index in range(count):
        if not index % STRIDE:
            marks.append(at - begin)
        stop = at + U64.size + (unpack(data, at)[0] if at <= last else cursor.end)
        if stop > cursor.end:
            cursor.at = at
            cursor.string(f"string {index} of {key}")  # raises
        at = stop
    cursor.at = at
    return Strings(data[begin:at], marks, count)


def is_alignment(value: object) -> TypeGuard[int]:
    """Return whether a value is a valid alignment in bytes."""
    return isinstance(value, int) and 0 < value <= MAX_ALIGNMENT and value & (value - 1) == 0


def _alignment(cursor: Cursor, entry: Entry | None) -> int:
    if entry is None:
        return ALIGNMENT
    if entry.type == "UINT32" and is_alignment(entry.value):
        return entry.value
    need = f"a UINT32 and power of two up to {MAX_ALIGNMENT}"
    raise cursor.error("general.alignment", entry.offset, need, f"{entry.type} {entry.value!r}")
