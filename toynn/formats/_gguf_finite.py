"""NaN and infinity in tensor data, found in the bytes: no weights are expanded for it.

A float is NaN or infinite if all bits of its exponent are set. In quantized types only the scales
are floats.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats._gguf_tensors import BLOCKS

__all__ = ["find_nonfinite"]

Float = tuple[np.dtype[Any], int]

HALF: Float = (np.dtype("<u2"), 0x7C00)
#: By type: the unsigned integer of a float's size, and the bits of its exponent.
FLOATS: dict[str, Float] = {
    "F32": (np.dtype("<u4"), 0x7F800000),
    "F16": HALF,
    "BF16": (np.dtype("<u2"), 0x7F80),
}
#: By type: where the float16 scales stand in a block.
SCALES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
CHUNK = 1 << 18  # fields tested at a time: the temporaries stay in the cache


def find_nonfinite(raw: NDArray[np.uint8], type: str) -> tuple[str, int] | None:
    """Return where a contiguous tensor has a NaN or infinity, in words and as a byte, or None.

    Types that toynn cannot expand are not looked into.
    """
    dtype, exponent = FLOATS.get(type, HALF)
    nbytes = BLOCKS[type][1]
    for place in (0,) if type in FLOATS else SCALES.get(type, ()):
        fields = np.ndarray(raw.size // nbytes, dtype, raw, place, (nbytes,))
        for begin in range(0, len(fields), CHUNK):
            wrong = fields[begin : begin + CHUNK] & exponent == exponent
            if wrong.any():
                block = begin + int(wrong.argmax())
                where = f"element {block}" if type in FLOATS else f"scale of block {block}"
                return where, block * nbytes + place
    return None
