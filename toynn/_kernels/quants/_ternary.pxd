"""Super-blocks of 256 whose codes are -1, 0 and 1: bytes in, float32 out.

d is a float16, the last two bytes of a block; q[j] is the code of element j.

    type   bytes  before d                                          element j
    TQ1_0     54  48 of fives, 4 of fours: digits to the base of 3  y[j] = d (q[j] - 1)
    TQ2_0     66  64 of pairs of bits                               y[j] = d (q[j] - 1)

A byte x of TQ1_0 stands for the fraction x / 256, whose digits to the base of 3 are q. The first
digit is the integer part of 3 x / 256, the next that of 3 (3 x modulo 256) / 256, and so on. The
first digits of bytes 0..31 are elements 0..31, their second digits 32..63, and so on. The first
digits of bytes 32..47 are elements 160..175, and those of bytes 48..51 are elements 240..243.
pairs: as in Q2_K (_superblocks.pxd). Their codes go up to 3, which gives 2 d.
Source: ggml-common.h and dequantize_row_tq* of ggml-quants.c in ggml.
"""
cimport cython
from libc.stdint cimport int8_t, uint8_t

from toynn._kernels.quants._blocks cimport RUN, floats, half, word
from toynn._kernels.quants._superblocks cimport SUPER

cdef extern from "codes.h" nogil:
    void bits_run "tn_bits_run" (
        float* y, const uint8_t* low, int shift, int mask, const uint8_t* high, int high_shift,
        int high_mask, int place, int offset, const float* scale, const float* least,
    ) noexcept
    void bytes_run "tn_bytes_run" (
        float* y, const int8_t* q, int offset, const float* scale
    ) noexcept


@cython.overflowcheck(False)
cdef inline void _digits(uint8_t* q, const uint8_t* raw, int size, int count) noexcept nogil:
    """Overwrite q with the first digits of ``size`` bytes, then their second digits, .."""
    cdef uint8_t rest[RUN]
    cdef int i, k, tripled
    for i in range(size):
        rest[i] = raw[i]
    for k in range(count):
        for i in range(size):
            tripled = 3 * rest[i]
            q[k * size + i] = <uint8_t>(tripled >> 8)
            rest[i] = <uint8_t>(tripled & 255)


cdef inline void block_tq1_0(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint8_t q[SUPER]
    cdef float[2] scale
    cdef Py_ssize_t s
    scale[0] = scale[1] = half(word(raw + 52))
    _digits(q, raw, 32, 5)
    _digits(q + 160, raw + 32, 16, 5)
    _digits(q + 240, raw + 48, 4, 4)
    for s in range(s0, s1):
        bytes_run(y + (s - s0) * RUN, <const int8_t*>q + s * RUN, 1, scale)


cdef inline void block_tq2_0(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef float[2] scale
    cdef Py_ssize_t s
    scale[0] = scale[1] = half(word(raw + 64))
    for s in range(s0, s1):
        bits_run(
            y + (s - s0) * RUN, raw + (s // 4) * RUN, 2 * (s & 3), 3, NULL, 0, 0, 0, 1, scale, NULL
        )
