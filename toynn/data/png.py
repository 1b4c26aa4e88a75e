"""Encode pictures as PNG for reports, without a library.

Source: W3C, Portable Network Graphics (PNG) Specification, 3rd edition, sections 5 and 11.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

GREY, RGB = 0, 2  # colour types


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the PNG file of a uint8 picture (H, W, C), C of 1 (grey) or 3 (RGB)."""
    height, width, channels = pixels.shape
    kind = GREY if channels == 1 else RGB
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # byte 0 of a row is its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
