"""GGUF files built byte by byte, so that any of their bytes can be wrong."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

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
