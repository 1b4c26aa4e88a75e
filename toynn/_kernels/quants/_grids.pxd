"""Super-blocks of 256 whose codes choose rows of a codebook: bytes in, float32 out.

d is a float16; a[s] has 4 bits for each sub-block of 32 elements (16 in IQ2_XS and IQ2_S). g[j] is
number j % 8 of a row (j % 4 in IQ3, whose rows have four). It is negative if its sign bit is set.

    type     bytes  in this order                              element j
    IQ2_XXS     66  d, 8 times: 4 of low, 4 of seven           y[j] = d (a[s] + 1/2) / 4 g[j]
    IQ2_XS      74  d, 32 words of 9 bits and seven, 8 of a    y[j] = d (a[s] + 1/2) / 4 g[j]
    IQ2_S       82  d, 32 of low, 32 signs, 8 of high, 8 of a  y[j] = d (a[s] + 1/2) / 4 g[j]
    IQ3_XXS     98  d, 64 of low, 8 times: 4 of seven          y[j] = d (a[s] + 1/2) / 2 g[j]
    IQ3_S      110  d, 64 of low, 8 of high, 32 signs, 4 of a  y[j] = d (2 a[s] + 1) g[j]

low: the lower 8 bits of the number of a row. high: the upper bits of these numbers. A byte serves a
run of 32, with two bits a row in IQ2_S and one in IQ3_S; the lowest bits belong to the first row.
seven: four times 7 sign bits for 8 elements, with a[s] above them. The eighth sign makes the number
of minus signs even. a: bits 0..3 of a byte come first.

No product rounds: a float16 has 11 bits, a scale 5 and a number 6; a float32 has 24. No step reads
or makes a subnormal. All rows of a block are written before one is used. A row is narrower than a
register, and a load that spans several stores waits until they have left the CPU's store buffer.
Source: ggml-common.h and dequantize_row_iq* of ggml-quants.c in ggml.
"""
cimport cython
from libc.stdint cimport int8_t, uint8_t, uint32_t, uint64_t

from toynn._kernels.quants._blocks cimport RUN, floats, half, word
from toynn._kernels.quants._superblocks cimport RUNS
from toynn._kernels.base.codebooks cimport (
    EIGHT_SIGNS, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, SEVEN_SIGNS,
)

cdef extern from "codes.h" nogil:
    void bytes_run "tn_bytes_run" (
        float* y, const int8_t* q, int offset, const float* scale
    ) noexcept


cdef inline uint32_t _double_word(const uint8_t* raw) noexcept nogil:
    """Four bytes, the lowest first, at any address."""
    return word(raw) | (<uint32_t>word(raw + 2) << 16)


@cython.overflowcheck(False)
cdef inline uint64_t _negated(uint64_t row, uint64_t signs) noexcept nogil:
    """Negate the int8 of a row (none is 0) where the byte of signs is 255."""
    return (row ^ signs) + (signs & <uint64_t>0x0101010101010101)


cdef inline uint64_t _fours(uint32_t first, uint32_t second) noexcept nogil:
    """Join two rows of four bytes."""
    return first | (<uint64_t>second << 32)


cdef inline void scale_rows(
    floats y, const uint64_t* eight, const float* scales, Py_ssize_t s0, Py_ssize_t s1, int offset
) noexcept nogil:
    """Overwrite y with runs s0 .. s1 - 1 from their rows, with two scales each."""
    cdef Py_ssize_t s
    for s in range(s0, s1):
        bytes_run(y + (s - s0) * RUN, <const int8_t*>(eight + 4 * s), offset, scales + 2 * s)


cdef inline void block_iq2_xxs(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef const uint8_t* low
    cdef uint32_t signs
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):
        low = raw + 2 + 8 * s
        signs = _double_word(low + 4)
        scales[2 * s] = scales[2 * s + 1] = d * (<float>0.5 + (signs >> 28)) * <float>0.25
        for k in range(4):
            eight[4 * s + k] = _negated(IQ2_XXS[low[k]], SEVEN_SIGNS[(signs >> (7 * k)) & 127])
    scale_rows(y, eight, scales, s0, s1, 0)


cdef inline void block_iq2_xs(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef uint32_t code
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):
        for k in range(2):
            code = (raw[66 + s] >> (4 * k)) & 15
            scales[2 * s + k] = d * (<float>0.5 + code) * <float>0.25
        for k in range(4):
            code = word(raw + 2 + 8 * s + 2 * k)
            eight[4 * s + k] = _negated(IQ2_XS[code & 511], SEVEN_SIGNS[code >> 9])
    scale_rows(y, eight, scales, s0, s1, 0)


cdef inline void block_iq2_s(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef uint32_t a, row
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):
        for k in range(2):
            a = (raw[74 + s] >> (4 * k)) & 15
            scales[2 * s + k] = d * (<float>0.5 + a) * <float>0.25
        for k in range(4):
            row = raw[2 + 4 * s + k] | (((raw[66 + s] >> (2 * k)) & 3) << 8)
            eight[4 * s + k] = _negated(IQ2_S[row], EIGHT_SIGNS[raw[34 + 4 * s + k]])
    scale_rows(y, eight, scales, s0, s1, 0)


cdef inline void block_iq3_xxs(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef const uint8_t* low
    cdef uint32_t signs
    cdef Py_ssize_t s
    cdef int k
    for s in range(s0, s1):
        low = raw + 2 + 8 * s
        signs = _double_word(raw + 66 + 4 * s)
        scales[2 * s] = scales[2 * s + 1] = d * (<float>0.5 + (signs >> 28)) * <float>0.5
        for k in range(4):
            eight[4 * s + k] = _negated(
                _fours(IQ3_XXS[low[2 * k]], IQ3_XXS[low[2 * k + 1]]),
                SEVEN_SIGNS[(signs >> (7 * k)) & 127]
            )
    scale_rows(y, eight, scales, s0, s1, 0)


cdef inline void block_iq3_s(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint64_t[4 * RUNS] eight
    cdef float[2 * RUNS] scales
    cdef float d = half(word(raw))
    cdef const uint8_t* low
    cdef uint32_t high, first, second
    cdef Py_ssize_t s
    cdef int k, a
    for s in range(s0, s1):
        low = raw + 2 + 8 * s
        high = raw[66 + s]
        a = (raw[106 + s // 2] >> (4 * (s & 1))) & 15
        scales[2 * s] = scales[2 * s + 1] = d * (2 * a + 1)
        for k in range(4):
            first = IQ3_S[low[2 * k] | (((high >> (2 * k)) & 1) << 8)]
            second = IQ3_S[low[2 * k + 1] | (((high >> (2 * k + 1)) & 1) << 8)]
            eight[4 * s + k] = _negated(
                _fours(first, second), EIGHT_SIGNS[raw[74 + 4 * s + k]]
            )
    scale_rows(y, eight, scales, s0, s1, 0)
