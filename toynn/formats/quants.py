"""Dequantize and quantize GGUF tensors with the kernels of toynn._kernels.quants."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn.errors import GGUFError, ShapeError
from toynn.numerics.dtypes import GGUF_BLOCKS as BLOCKS
from toynn.numerics.dtypes import GGUF_TYPES as TYPES

__all__ = ["BLOCKS", "TYPES", "dequantize", "quantize", "rows"]

_QUANTIZED = ("Q8_0", "Q4_0")


def dequantize(
    raw: NDArray[np.uint8], type: str, shape: tuple[int, ...], *, n_threads: int = 1
) -> NDArray[np.float32]:
    """Return a new float32 array of this shape (rows first) from the bytes of its blocks.

    The bits equal the gguf library's. Raises GGUFError for a type that is not in BLOCKS. Raises
    ShapeError if a row is not a whole number of blocks, or raw has the wrong size.
    """
    nbytes = _row_bytes("dequantize", type, shape) * prod(shape[:-1])
    if raw.dtype != np.uint8 or not raw.flags.c_contiguous or raw.size != nbytes:
        raise ShapeError(
            f"dequantize: {type} of shape {shape} needs {nbytes} contiguous bytes; got "
            f"{raw.dtype} {raw.shape}{'' if raw.flags.c_contiguous else ', not contiguous'}"
        )
    flat = raw.reshape(-1)
    if type == "F32":
        return flat.view("<f4").astype(np.float32).reshape(shape)
    values = np.empty(shape, np.float32)
    kernels.quants.dequantize(values.reshape(-1), flat, TYPES[type], n_threads=n_threads)
    return values


def rows(
    stored: NDArray[Any], type: str, shape: tuple[int, ...], which: slice | NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """Dequantize some rows of a matrix (V, C) that is stored as in a file.

    ``stored`` is the whole matrix: float32, or the bytes of another type. Raises what
    ``dequantize`` does.
    """
    if type == "F32":
        return np.asarray(stored[which], np.float32)
    blocks = np.ascontiguousarray(stored.reshape(shape[0], -1)[which])
    return dequantize(blocks, type, (len(blocks), shape[1]))


def quantize(array: NDArray[Any], type: str, *, n_threads: int = 1) -> NDArray[np.uint8]:
    """Return the blocks of an array, rounded to float32 first, as "Q8_0" or "Q4_0".

    The result has the array's shape, except that the last axis is bytes. Raises GGUFError for
    another type, and for values that no block can hold: NaN, infinity, or a scale over 65504.
    Raises ShapeError if a row is not a whole number of blocks.
    """
    if type not in _QUANTIZED:
        raise GGUFError(f"quantize: needs a type of {', '.join(_QUANTIZED)}; got {type!r}")
    row_bytes = _row_bytes("quantize", type, array.shape)
    values = np.ascontiguousarray(array, np.float32).reshape(-1)
    elements, nbytes = BLOCKS[type]
    blocks = np.empty((values.size // elements, nbytes), np.uint8)
    kernels.quants.quantize(blocks.reshape(-1), values, TYPES[type], n_threads=n_threads)
    scales = blocks[:, :2].copy().view("<f2")[:, 0]
    if not np.isfinite(scales).all():
        block = int(np.argmax(~np.isfinite(scales)))
        largest = np.abs(values[block * elements : (block + 1) * elements]).max()
        raise GGUFError(
            f"quantize: {type} needs finite values and a scale of at most 65504; block {block} "
            f"(from element {block * elements} on) has a largest magnitude of {largest}"
        )
    return blocks.reshape(*array.shape[:-1], row_bytes)


def _row_bytes(where: str, type: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a row (the last axis); a scalar is one row."""
    if type not in BLOCKS:
        raise GGUFError(f"{where}: needs a type of {', '.join(BLOCKS)}; got {type!r}")
    elements, nbytes = BLOCKS[type]
    row = shape[-1] if shape else 1
    if row % elements or min(shape, default=0) < 0:
        raise ShapeError(
            f"{where}: {type} needs rows of a multiple of {elements} elements; got shape {shape}"
        )
    return row // elements * nbytes
