"""Super-blocks of 256: bytes in, float32 out, one inline function for each type.

A call may ask for some runs of 32 elements: a panel of a matrix product may begin inside a block.

The scales of sub-blocks are small integers, times one float16 for the super-block.
d and m are float16, q[j] is the unsigned code of element j, s its sub-block.

    type   bytes  in this order                            element j
    Q2_K      84  16 of b and a, 64 of pairs, d, m         y[j] = d a[s] q[j] - m b[s]
    Q3_K     110  32 high, 64 of pairs, 12 of scales, d    y[j] = d (a[s] - 32) (q[j] - 4)
    Q4_K     144  d, m, 12 of scales, 128 of low           y[j] = d a[s] q[j] - m b[s]
    Q5_K     176  d, m, 12 of scales, 32 high, 128 of low  y[j] = d a[s] q[j] - m b[s]
    Q6_K     210  128 of low, 64 of high, 16 int8 a, d     y[j] = d a[s] (q[j] - 32)

docs/pictures/q4_k.svg draws a block of Q4_K. The code calls d a[s] scale and m b[s] least.
Sub-blocks have 32 elements in Q4_K and Q5_K, and 16 in the others.
low: the lower 4 bits of the codes. In Q4_K and Q5_K bits 0..3 of 32 bytes are sub-block s and bits
4..7 sub-block s + 1 (s even). In Q6_K bits 0..3 of 64 bytes are elements 0..63 of a half block and
bits 4..7 its elements 64..127.
pairs: the lower 2 bits of the codes. A half block has 32 bytes; their lowest two bits belong to its
first 32 elements, the next two to the next 32. Bits 4 and 5 of Q6_K are stored in the same way, in
high. high of Q3_K and Q5_K: the upper bit of q[j] (bit 2 in Q3_K, bit 4 in Q5_K) is bit j // 32 of
byte j % 32. b and a: the upper and lower half of a byte. scales: see tn_scales_k of codes.h;
for Q3_K scales_q3_k.

No product rounds: a float16 has 11 bits, a scale 7 and a code 6; a float32 has 24. No step reads or
makes a subnormal. Source: ggml-common.h and ggml-quants.c in ggml.
"""
cimport cython
from libc.stdint cimport int8_t, uint8_t, uint32_t
from libc.string cimport memcpy

from toynn._kernels.quants._blocks cimport RUN, floats, half, word

cdef extern from "codes.h" nogil:
    void bits_run "tn_bits_run" (
        float* y, const uint8_t* low, int shift, int mask, const uint8_t* high, int high_shift,
        int high_mask, int place, int offset, const float* scale, const float* least,
    ) noexcept
    void scales_of "tn_times" (float* y, const int8_t* a, float d) noexcept
    void scales_k "tn_scales_k" (int8_t* a, const uint8_t* raw) noexcept
    void q4_k_pair "tn_q4_k_pair" (
        float* y, const uint8_t* codes, const float* scale, const float* least
    ) noexcept
    void q6_k_four "tn_q6_k_four" (
        float* y, const uint8_t* low, const uint8_t* high, const float* scale
    ) noexcept

cdef enum:
    SUPER = 256  # elements of a super-block
    RUNS = 8     # of 32 elements each

# Each block_TYPE overwrites y with runs s0 .. s1 - 1 of the block whose bytes are raw.


@cython.overflowcheck(False)
cdef inline void scales_q3_k(int8_t* a, const uint8_t* raw) noexcept nogil:
    """a[0..15], 6 bits each, from 12 bytes, four at a time.

    The lower 4 bits of a[s] are the lower half of byte s (s < 8) or the upper half of byte s - 8.
    Its upper 2 bits are in byte 8 + s % 4, from bit 2 (s // 4) on.
    """
    cdef uint32_t raw4[3]
    cdef uint32_t four[4]
    cdef uint32_t nibbles = 0x0F0F0F0F, pairs = 0x30303030
    memcpy(raw4, raw, 12)
    four[0] = (raw4[0] & nibbles) | ((raw4[2] << 4) & pairs)
    four[1] = (raw4[1] & nibbles) | ((raw4[2] << 2) & pairs)
    four[2] = ((raw4[0] >> 4) & nibbles) | (raw4[2] & pairs)
    four[3] = ((raw4[1] >> 4) & nibbles) | ((raw4[2] >> 2) & pairs)
    memcpy(a, four, 16)


cdef inline void block_q2_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef float d = half(word(raw + 80)), m = half(word(raw + 82))
    cdef float[2] scale, least
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):  # four runs make a half block
        for k in range(2):
            scale[k] = d * (raw[2 * s + k] & 15)
            least[k] = m * (raw[2 * s + k] >> 4)
        bits_run(
            y + (s - s0) * RUN, raw + 16 + (s // 4) * RUN, 2 * (s & 3), 3, NULL, 0, 0, 0, 0, scale,
            least,
        )


cdef inline void block_q3_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef int8_t a[16]
    cdef float d = half(word(raw + 108))
    cdef float[2] scale
    cdef Py_ssize_t s
    cdef int k
    scales_q3_k(a, raw + 96)
    for s in range(s0, s1):
        for k in range(2):
            scale[k] = d * (a[2 * s + k] - 32)
        bits_run(
            y + (s - s0) * RUN, raw + 32 + (s // 4) * RUN, 2 * (s & 3), 3, raw, s, 1, 2, 4, scale,
            NULL,
        )


cdef inline void block_q4_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef int8_t[16] a
    cdef float[16] scale, least  # least begins at 8
    cdef float[2] scales, leasts
    cdef Py_ssize_t s = s0
    scales_k(a, raw + 4)
    scales_of(scale, a, half(word(raw)))
    scales_of(least, a, half(word(raw + 2)))
    while s < s1:
        if s % 2 == 0 and s + 2 <= s1:
            q4_k_pair(y + (s - s0) * RUN, raw + 16 + s // 2 * RUN, scale + s, least + 8 + s)
            s += 2
            continue
        scales[0] = scales[1] = scale[s]
        leasts[0] = leasts[1] = least[8 + s]
        bits_run(
            y + (s - s0) * RUN, raw + 16 + s // 2 * RUN, 4 * (s & 1), 15, NULL, 0, 0, 0, 0, scales,
            leasts,
        )
        s += 1


cdef inline void block_q5_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef int8_t[16] a
    cdef float d = half(word(raw)), m = half(word(raw + 2))
    cdef float[2] scale, least
    cdef Py_ssize_t s
    scales_k(a, raw + 4)
    for s in range(s0, s1):
        scale[0] = scale[1] = d * a[s]
        least[0] = least[1] = m * a[8 + s]
        bits_run(
            y + (s - s0) * RUN, raw + 48 + (s // 2) * RUN, 4 * (s & 1), 15, raw + 16, s, 1, 4, 0,
            scale, least,
        )


cdef inline void block_q6_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef const uint8_t* low
    cdef const uint8_t* high
    cdef float[16] scale
    cdef Py_ssize_t s = s0
    scales_of(scale, <const int8_t*>raw + 192, half(word(raw + 208)))
    while s < s1:
        low, high = raw + s // 4 * 64, raw + 128 + s // 4 * RUN
        if s % 4 == 0 and s + 4 <= s1:
            q6_k_four(y + (s - s0) * RUN, low, high, scale + 2 * s)
            s += 4
            continue
        bits_run(
            y + (s - s0) * RUN, low + (s & 1) * RUN, 4 * (s >> 1 & 1), 15, high, 2 * (s & 3), 3, 4,
            32, scale + 2 * s, NULL,
        )
        s += 1
