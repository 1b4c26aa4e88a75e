"""Super-blocks of 256 whose codes choose rows of -1, 0 and 1, shifted by 1/8 up or down.

d is a float16; g[j] is number j % 8 of a row of the codebook. 1/8 is added to it, or subtracted if
its sign bit is set. a[s] has 3 bits for each sub-block of 32 elements (IQ1_S) or 16 (IQ1_M).

    type   bytes  in this order                        element j
    IQ1_S     50  d, 32 of low, 8 words of high and a  y[j] = d (2 a[s] + 1) (g[j] +- 1/8)
    IQ1_M     56  32 of low, 16 of high, 4 words of a  y[j] = d (2 a[s] + 1) (g[j] +- 1/8)

low: the lower 8 bits of the number of a row. high: its upper 3 bits. In IQ1_S a word has these bits
of four rows, with a[s] and one sign above. In IQ1_M a byte has these bits of two rows, each with a
sign above. In IQ1_M a word has a[s] of four sub-blocks, with 4 bits of d above. The first word has
the lowest bits of d.

No product rounds, and no step reads or makes a subnormal: see _grids.pxd. 8 (g +- 1/8) is an
integer. Codebook rows hold 8 g + 8; adding 2 for + 1/8 makes every number 9 too large.
Source: ggml-common.h and dequantize_row_iq1* of ggml-quants.c in ggml.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from toynn._kernels.quants._blocks cimport floats, half, word
from toynn._kernels.quants._grids cimport scale_rows
from toynn._kernels.quants._superblocks cimport RUNS
from toynn._kernels.base.codebooks cimport IQ1


@cython.overflowcheck(False)
cdef inline uint64_t _eighths(uint32_t row, uint32_t minus) noexcept nogil:
    return IQ1[row] + (0 if minus else <uint64_t>0x0202020202020202)


cdef inline void block_iq1_s(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef int high
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):
        high = word(raw + 34 + 2 * s)
        scales[2 * s] = scales[2 * s + 1] = d * (2 * ((high >> 12) & 7) + 1) * <float>0.125
        for k in range(4):
            eight[4 * s + k] = _eighths(
                raw[2 + 4 * s + k] | (((high >> (3 * k)) & 7) << 8), high >> 15
            )
    scale_rows(y, eight, scales, s0, s1, 9)


cdef inline void block_iq1_m(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef int high, a
    cdef Py_ssize_t s
    cdef int k
    cdef float d = half(<uint16_t>(
        (raw[49] >> 4) | (raw[51] & 0xF0) | ((raw[53] & 0xF0) << 4) | ((raw[55] & 0xF0) << 8)
    ))
    for s in range(s0, s1):
        for k in range(2):
            a = (word(raw + 48 + s // 2 * 2) >> (6 * (s & 1) + 3 * k)) & 7
            scales[2 * s + k] = d * (2 * a + 1) * <float>0.125
        for k in range(4):
            high = raw[32 + 2 * s + k // 2] >> (4 * (k & 1))
            eight[4 * s + k] = _eighths(raw[4 * s + k] | ((high & 7) << 8), (high >> 3) & 1)
    scale_rows(y, eight, scales, s0, s1, 9)
