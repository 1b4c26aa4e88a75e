"""Pictures as PNG, for pages: no library is needed to write it.

Source: W3C, Portable Network Graphics (PNG) Specification, 3rd edition, sections 5 and 11.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["png"]

GREY, RGB = 0, 2  # colour types


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the file of a picture (H, W, C) of bytes, C of 1 (grey) or 3 (RGB)."""
    height, width, channels = pixels.shape
    kind = GREY if channels == 1 else RGB
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
