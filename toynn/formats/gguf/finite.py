"""Find NaN and infinity in the bytes of tensors, without dequantizing.

A float is NaN or infinite if all bits of its exponent are set. In quantized types only scales are
floats. MXFP4's scales are exponents alone (E8M0); NVFP4's floats are always finite.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats.gguf.tensors import BLOCKS

Float = tuple[np.dtype[Any], int, int]

#: The least scale of MXFP4 with infinite numbers: a number is up to 12 times 2^(scale - 128).
E8M0_LIMIT = 253
HALF: Float = (np.dtype("<u2"), 0x7C00, 0x7C00)
#: For each type that is not HALF: an unsigned integer of the float's size, the mask of the
#: exponent's bits, and the least exponent of numbers that are not finite. (The scale of IQ1_M is
#: the upper 4 bits of four words; its exponent is in the last two.)
FLOATS: dict[str, Float] = {
    "F32": (np.dtype("<u4"), 0x7F800000, 0x7F800000),
    "BF16": (np.dtype("<u2"), 0x7F80, 0x7F80),
    "MXFP4": (np.dtype("u1"), 0xFF, E8M0_LIMIT),
    "IQ1_M": (np.dtype("<u4"), 0x7000C000, 0x7000C000),
}
#: By type: the bytes at which scales begin in a block.
SCALES: dict[str, tuple[int, ...]] = {
    "F32": (0,),
    "F16": (0,),
    "BF16": (0,),
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ3_S": (0,),
    "IQ3_XXS": (0,),
    "IQ2_S": (0,),
    "IQ2_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ1_S": (0,),
    "IQ1_M": (52,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "MXFP4": (0,),
}
CHUNK = 1 << 18  # fields tested at once: the temporaries stay in the cache


def find_nonfinite(raw: NDArray[np.uint8], type: str) -> tuple[str, int] | None:
    """Return the place of a NaN or infinity in a contiguous tensor, or None.

    The place is in words, and as a byte offset. Types that toynn cannot dequantize are skipped.
    """
    dtype, exponent, least = FLOATS.get(type, HALF)
    elements, nbytes = BLOCKS[type]
    for place in SCALES.get(type, ()):
        fields = np.ndarray(raw.size // nbytes, dtype, raw, place, (nbytes,))
        for begin in range(0, len(fields), CHUNK):
            wrong = fields[begin : begin + CHUNK] & exponent >= least
            if wrong.any():
                block = begin + int(wrong.argmax())
                where = f"element {block}" if elements == 1 else f"scale of block {block}"
                return where, block * nbytes + place
    return None
