"""Convert MXFP4 from Hugging Face's two tensors, blocks and scales, to GGUF's one.

    Hugging Face  ..._blocks (..., G, 16), ..._scales (..., G): byte j has elements 2 j and 2 j + 1
    GGUF          rows of G blocks of 17 bytes: the scale, then byte j has elements j and j + 16

A row has 32 G elements; the first element of a byte is in its lower four bits. A number is
2^(scale - 127) times one of 16 values. Source: Open Compute Project 2023, Microscaling Formats
v1.0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS, SCALES = "_blocks", "_scales"  # suffixes of names
ELEMENTS, BYTES = 32, 17  # of a block: elements, and GGUF's bytes


def interleaved(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[Any]:
    """Return GGUF's bytes (..., 17 G) from blocks (..., G, 16) and scales (..., G)."""
    elements = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], ELEMENTS)
    halves = elements[..., :16] | elements[..., 16:] << 4
    whole = np.concatenate([scales[..., None], halves], axis=-1)
    return whole.reshape(*scales.shape[:-1], BYTES * scales.shape[-1])
