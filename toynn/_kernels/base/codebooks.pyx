"""The codebooks of the IQ types: rows of 8 or 4 small numbers, chosen by 8 to 11 bits.

    row[k] = number k of the row that these bits choose

No formula gives them: they were fitted to weights. So ``fill`` reads them from the gguf library,
before a kernel is first called with an IQ type. The library dequantizes blocks that ask for every
row, with scale 1 and no signs. The codebooks are the same at all ISA levels, hence built once.
Source: the tables iq2xxs_grid and so on of ggml-common.h in ggml.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from functools import cache

import numpy as np

cdef uint64_t[256] _iq2_xxs
cdef uint64_t[512] _iq2_xs
cdef uint64_t[1024] _iq2_s
cdef uint32_t[256] _iq3_xxs
cdef uint32_t[512] _iq3_s
cdef uint64_t[2048] _iq1
cdef uint64_t[256] _eight_signs
cdef uint64_t[128] _seven_signs

IQ2_XXS, IQ2_XS, IQ2_S = _iq2_xxs, _iq2_xs, _iq2_s
IQ3_XXS, IQ3_S, IQ1 = _iq3_xxs, _iq3_s, _iq1
EIGHT_SIGNS, SEVEN_SIGNS = _eight_signs, _seven_signs


def _blocks(str type, float d, indices):
    """Return blocks of zeros with a scale, one per row of indices; low bytes and high bits."""
    import gguf  # takes half as long as all else that `import toynn` imports

    nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    raw = np.zeros((len(indices), nbytes), np.uint8)
    raw[:, :2] = np.array([d], "<f2").view(np.uint8)
    return raw, indices.astype(np.uint8), indices[:, :1] >> 8


cdef int _take(void* rows, str type, raw, int factor=1, int added=0) except -1:
    """Dequantize the blocks; store factor * number + added as bytes."""
    import gguf

    numbers = gguf.dequantize(raw, gguf.GGMLQuantizationType[type]).reshape(-1)
    cdef const uint8_t[::1] stored = (numbers * factor + added).astype(np.uint8)
    memcpy(rows, &stored[0], stored.shape[0])
    return 0


@cache
def fill():
    """Overwrite the codebooks, once."""
    _fill_signs()
    indices = np.arange(2048).reshape(-1, 32)
    raw, low, _ = _blocks("IQ2_XXS", 8, indices[:8])
    raw[:, 2:].reshape(-1, 8, 8)[:, :, :4] = low.reshape(-1, 8, 4)
    _take(_iq2_xxs, "IQ2_XXS", raw)
    raw, _, _ = _blocks("IQ2_XS", 8, indices[:16])
    raw[:, 2:66] = indices[:16].astype("<u2").view(np.uint8)
    _take(_iq2_xs, "IQ2_XS", raw)
    raw, low, high = _blocks("IQ2_S", 8, indices[:32])
    raw[:, 2:34], raw[:, 66:74] = low, 0b01010101 * high
    _take(_iq2_s, "IQ2_S", raw)
    raw, low, _ = _blocks("IQ3_XXS", 4, indices[:8].reshape(-1, 64))
    raw[:, 2:66] = low
    _take(_iq3_xxs, "IQ3_XXS", raw)
    raw, low, high = _blocks("IQ3_S", 1, indices[:16].reshape(-1, 64))
    raw[:, 2:66], raw[:, 66:74] = low, 0b11111111 * high
    _take(_iq3_s, "IQ3_S", raw)
    raw, low, high = _blocks("IQ1_S", 1, indices)
    raw[:, 2:34] = low
    raw[:, 34:].view("<u2")[:] = 0b001001001001 * high
    _take(_iq1, "IQ1_S", raw, 8, 7)  # this type adds 1/8 to each number


def rows():
    """Return the bytes of each codebook by name, row after row, for kernels of other devices."""
    fill()
    return {
        "IQ2_XXS": (<const uint8_t*>_iq2_xxs)[:sizeof(_iq2_xxs)],
        "IQ2_XS": (<const uint8_t*>_iq2_xs)[:sizeof(_iq2_xs)],
        "IQ2_S": (<const uint8_t*>_iq2_s)[:sizeof(_iq2_s)],
        "IQ3_XXS": (<const uint8_t*>_iq3_xxs)[:sizeof(_iq3_xxs)],
        "IQ3_S": (<const uint8_t*>_iq3_s)[:sizeof(_iq3_s)],
        "IQ1": (<const uint8_t*>_iq1)[:sizeof(_iq1)],
    }


cdef void _fill_signs() noexcept:
    cdef uint64_t ones
    cdef uint32_t bits, k, count
    for bits in range(256):
        ones = count = 0
        for k in range(8):
            ones |= <uint64_t>((bits >> k) & 1) << (8 * k)
            count += (bits >> k) & 1
        _eight_signs[bits] = 255 * ones
        if count % 2 == 0:
            _seven_signs[bits & 127] = 255 * ones
