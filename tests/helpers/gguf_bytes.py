"""GGUF files built byte by byte, so that any of their bytes can be wrong."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SCALARS = {
    "UINT8": (0, "B"),
    "INT8": (1, "b"),
    "UINT16": (2, "H"),
    "INT16": (3, "h"),
    "UINT32": (4, "I"),
    "INT32": (5, "i"),
    "FLOAT32": (6, "f"),
    "BOOL": (7, "B"),
    "UINT64": (10, "Q"),
    "INT64": (11, "q"),
    "FLOAT64": (12, "d"),
}


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number % 2**64)


def string(text):
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def scalar(value, type):
    id, code = SCALARS[type]
    return u32(id) + struct.pack(f"<{code}", value)


def numbers(values, type):
    id, code = SCALARS[type]
    return u32(9) + u32(id) + u64(len(values)) + struct.pack(f"<{len(values)}{code}", *values)


def strings(values):
    return u32(9) + u32(8) + u64(len(values)) + b"".join(string(value) for value in values)


def text(value):
    return u32(8) + string(value)


def key(name, value):
    """A key and its value, which is bytes with the type in front."""
    return string(name) + value


def tensor(name, dims, type=0, offset=0, n_dims=None):
    """A row of the table; dims are innermost first, as in the file."""
    n_dims = len(dims) if n_dims is None else n_dims
    return string(name) + u32(n_dims) + b"".join(map(u64, dims)) + u32(type) + u64(offset)


@dataclass
class File:
    """The parts of a file; bytes() joins them."""

    keys: list = field(default_factory=list)
    tensors: list = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def __bytes__(self):
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        header = self.magic + u32(self.version) + u64(n_tensors) + u64(n_keys)
        header += b"".join(self.keys) + b"".join(self.tensors)
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, folder):
        path = Path(folder) / "model.gguf"
        path.write_bytes(bytes(self))
        return path


ARCHITECTURE = key("general.architecture", text("llama"))
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)  # 48 bytes, 64 with padding


def floats(count=12):
    raw = np.arange(count, dtype="<f4").tobytes()
    return raw + bytes(-len(raw) % 32)


def small():
    """A valid file with a value of every type and two tensors."""
    keys = [
        ARCHITECTURE,
        key("u8", scalar(200, "UINT8")),
        key("i8", scalar(-2, "INT8")),
        key("u16", scalar(60000, "UINT16")),
        key("i16", scalar(-3, "INT16")),
        key("u32", scalar(2**32 - 1, "UINT32")),
        key("i32", scalar(-4, "INT32")),
        key("f32", scalar(0.5, "FLOAT32")),
        key("yes", scalar(1, "BOOL")),
        key("u64", scalar(2**64 - 1, "UINT64")),
        key("i64", scalar(-(2**63), "INT64")),
        key("f64", scalar(0.1, "FLOAT64")),
        key("strings", strings(["a", "", b"\xff\xe2\x82", "naïve"])),
        key("numbers", numbers([1, -2, 3], "INT32")),
        key("bools", numbers([1, 0], "BOOL")),
        key("none", numbers([], "FLOAT32")),
    ]
    rows = [tensor("a", [4, 3]), tensor("b", [5], 1, 64)]
    half = np.arange(5, dtype="<f2").tobytes()
    return File(keys, rows, floats() + half + bytes(32 - len(half)))


def with_key(*keys):
    return File([ARCHITECTURE, *keys])


def with_tensors(*rows, data=b"", keys=()):
    return File([ARCHITECTURE, *keys], list(rows), data)
