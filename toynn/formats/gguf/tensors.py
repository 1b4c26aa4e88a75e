"""Read the tensor table of a GGUF file: per tensor a name, dimensions, a type and an offset.

Regions of the data must be adjacent except for padding, as llama.cpp demands. So no regions
overlap, and none is smaller than its type needs.
"""

import math
from dataclasses import dataclass, replace
from struct import Struct

from toynn.formats import quants
from toynn.formats.gguf.cursor import MAX_INT64, U32, Cursor
from toynn.numerics.dtypes import DTYPES

#: The names of the embedding table and of the head; a tied head has no tensor of its own.
TABLE, HEAD = "token_embd.weight", "output.weight"
#: Suffix of matrices of one row that llama.cpp's converter writes as vectors.
_ONE_ROW = ".ffn_gate_inp_shexp.weight"
MAX_NAME_BYTES = 63  # 64 with the terminator that llama.cpp adds
MAX_DIMENSIONS = 4
DIMENSIONS = [Struct(f"<{n}Q") for n in range(MAX_DIMENSIONS + 1)]
TYPE_AND_OFFSET = Struct("<IQ")
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # a name of one letter and one dimension

#: By id: name, elements and bytes of a block. The last seven are not dequantized.
TYPES = {type.ggml: (name.upper(), *type[1:]) for name, type in DTYPES.items()} | {
    9: ("Q8_1", 32, 40),
    15: ("Q8_K", 256, 292),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    41: ("Q1_0", 128, 18),
}
TYPES = dict(sorted(TYPES.items()))
#: By name: elements and bytes of a block.
BLOCKS = {name: (elements, nbytes) for name, elements, nbytes in TYPES.values()}
#: The types that toynn can dequantize.
READABLE = tuple(quants.BLOCKS)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place: shape in NumPy's order, offset in bytes from the start of the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table; its tensor's offset is still relative to the start of the data."""

    info: TensorInfo
    name_at: int
    offset_at: int


def read_tensors(cursor: Cursor, count: int) -> list[Entry]:
    """Read the table."""
    names: set[str] = set()
    rows = []
    for index in range(count):
        row = _read_row(cursor, index)
        name = row.info.name
        if name in names:
            raise cursor.error(
                f"name of tensor {index}", row.name_at, "a new name", f"{name!r} again"
            )
        names.add(name)
        rows.append(row)
    return rows


def _read_row(cursor: Cursor, index: int) -> Entry:
    name_at = cursor.at
    name = cursor.name(f"name of tensor {index}", MAX_NAME_BYTES)
    begin = cursor.at
    n_dims = cursor.number(f"dimension count of {name}", U32)
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise cursor.error(f"dimension count of {name}", begin, f"1 to {MAX_DIMENSIONS}", n_dims)
    code = DIMENSIONS[n_dims]
    shape_at = cursor.take(f"dimensions of {name}", code.size)
    shape: tuple[int, ...] = code.unpack_from(cursor.data, shape_at)[::-1]
    if max(shape) > MAX_INT64 or math.prod(shape) > MAX_INT64:
        raise cursor.error(f"dimensions of {name}", shape_at, "less than 2^63 elements", shape)
    begin = cursor.take(f"type and offset of {name}", TYPE_AND_OFFSET.size)
    type, offset = TYPE_AND_OFFSET.unpack_from(cursor.data, begin)
    if type not in TYPES:
        got = f"{type}, a type that toynn does not support"
        raise cursor.error(f"type of {name}", begin, f"one of {', '.join(READABLE)}", got)
    type_name, elements, nbytes = TYPES[type]
    if shape[-1] % elements:
        need = f"rows of whole blocks of {elements} ({type_name})"
        raise cursor.error(f"dimensions of {name}", shape_at, need, shape)
    size = math.prod(shape) // elements * nbytes
    if len(shape) == 1 and name.endswith(_ONE_ROW):
        shape = (1, *shape)
    return Entry(TensorInfo(name, type_name, shape, offset, size), name_at, begin + U32.size)


def place_tensors(
    cursor: Cursor, rows: list[Entry], data_offset: int, alignment: int
) -> dict[str, TensorInfo]:
    """Check that the regions are adjacent; return the table by name."""
    available = max(cursor.size - data_offset, 0)
    end = 0
    for row in sorted(rows, key=lambda row: (row.info.offset, row.info.nbytes)):
        info = row.info
        what = f"offset of {info.name}"
        if info.offset % alignment:
            raise cursor.error(what, row.offset_at, f"a multiple of {alignment}", info.offset)
        if info.offset + info.nbytes > available:
            raise cursor.error(
                f"data of {info.name} is not within the file bounds, the model is corrupted or "
                f"incomplete: its region",
                data_offset + info.offset,
                f"{info.nbytes} bytes, a file of {data_offset + info.offset + info.nbytes}",
                f"a file of {cursor.size} bytes",
            )
        expected = -(-end // alignment) * alignment
        if info.offset != expected:
            fault = "it overlaps the tensor before it" if info.offset < end else "a gap"
            raise cursor.error(
                what,
                row.offset_at,
                f"{expected}, where the one before ends",
                f"{info.offset}: {fault}",
            )
        end = info.offset + info.nbytes
    return {row.info.name: replace(row.info, offset=data_offset + row.info.offset) for row in rows}
