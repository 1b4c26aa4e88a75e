"""Blocks whose 4-bit codes are indices of a table: bytes in, float32 out.

d is a float16, e the exponent of a float (E8M0), f a small float (E4M3, no sign). q[j] is the
table's number for the code of element j. s is the sub-block of j; it has 32 elements in IQ4_XS, 16
in NVFP4.

    type    elements  bytes  in this order                          element j
    IQ4_NL        32     18  d, 16 of codes                         y[j] = d q[j]
    IQ4_XS       256    136  d, 2 of high, 4 of low, 128 of codes   y[j] = d (a[s] - 32) q[j]
    MXFP4         32     17  e, 16 of codes                         y[j] = 2^(e - 128) q[j]
    NVFP4         64     36  4 f, 32 of codes                       y[j] = f[s] / 2 q[j]

codes: bits 0..3 of 16 bytes are elements 0..15 of 32, bits 4..7 are elements 16..31. In NVFP4, bits
0..3 of 8 bytes are elements 0..7 of 16, bits 4..7 elements 8..15. The table has FP4 numbers twice
as large, so their factors are halved. The lower 4 bits of a[s] are one half of byte s // 2 of low.
The upper 2 bits are bits 2 s and 2 s + 1 of high.

No product rounds: a float16 has 11 bits, a scale 5 and a number 7; a float32 has 24. Only MXFP4 has
subnormal numbers. It makes them as integers, whether the caller flushes denormals or not.
Source: ggml-common.h, ggml-impl.h, ggml-quants.c in ggml; OCP Microscaling Formats v1.0, 5.3 and 6.
"""
from libc.stdint cimport int8_t, int32_t, uint8_t

from toynn._kernels.quants._blocks cimport RUN, floats, half, word

cdef extern from "codes.h" nogil:
    void bytes_run "tn_bytes_run" (
        float* y, const int8_t* q, int offset, const float* scale
    ) noexcept
    void lookup "tn_lookup" (
        int8_t* q, const int8_t* table, const uint8_t* low, int at_a_time
    ) noexcept
    const int8_t* IQ4 "tn_iq4"
    const int8_t* FP4 "tn_fp4"

cdef union _Bits:
    float f
    int32_t i


cdef inline float _power(int e) noexcept nogil:
    """2^(e - 128) for e in 2..255, by its bits."""
    cdef _Bits bits
    bits.i = (e - 1) * (1 << 23)  # not a shift: e may be 0; that result is not used
    return bits.f


cdef inline float _tiny(int q, int e) noexcept nogil:
    """q 2^(e - 128) for e in 0..1, by its bits: below 2^-125 the bits count units of 2^-149."""
    cdef _Bits bits
    cdef int32_t size = q if q >= 0 else -q, units = size << (21 + e)
    bits.i = units
    if units >= 1 << 24:
        bits.f = size
        bits.i -= (128 - e) << 23
    return bits.f if q >= 0 else -bits.f


cdef inline float _small_float(int x) noexcept nogil:
    """Half of an E4M3 float: 4 bits of exponent with bias 7, 3 bits of mantissa. NaN becomes 0."""
    cdef _Bits bits
    cdef int exponent = (x >> 3) & 15
    bits.i = ((exponent + 119) << 23) | ((x & 7) << 20)
    if exponent == 0:
        bits.f = (x & 7) * <float>0.0009765625  # 2^-10
    return 0 if x == 0x7F else bits.f


cdef inline void _table_run(
    floats y, const int8_t* table, const uint8_t* codes, float scale
) noexcept nogil:
    cdef int8_t q[RUN]
    cdef float[2] scales
    scales[0] = scales[1] = scale
    lookup(q, table, codes, 16)
    bytes_run(y, q, 0, scales)


cdef inline void rows_iq4_nl(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* raw = row + j // RUN * nbytes
    cdef Py_ssize_t i
    for i in range(n // RUN):
        _table_run(y + i * RUN, IQ4, raw + i * nbytes + 2, half(word(raw + i * nbytes)))


cdef inline void rows_mxfp4(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* block = row + j // RUN * nbytes
    cdef Py_ssize_t i
    cdef int8_t q[RUN]
    cdef int k
    for i in range(n // RUN):
        _table_run(y + i * RUN, FP4, block + 1, _power(block[0]))
        if block[0] < 2:
            lookup(q, FP4, block + 1, 16)
            for k in range(RUN):
                y[i * RUN + k] = _tiny(q[k], block[0])
        block += nbytes


cdef inline void block_iq4_xs(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef float d = half(word(raw))
    cdef int high = word(raw + 2), a
    cdef Py_ssize_t s
    for s in range(s0, s1):
        a = ((raw[4 + s // 2] >> (4 * (s & 1))) & 15) | (((high >> (2 * s)) & 3) << 4)
        _table_run(y + (s - s0) * RUN, IQ4, raw + 8 + s * 16, d * (a - 32))


cdef inline void rows_nvfp4(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    """A block has two runs, a run two sub-blocks."""
    cdef int8_t q[RUN]
    cdef float[2] scales
    cdef const uint8_t* block
    cdef Py_ssize_t r, first = j // RUN
    cdef int k
    for r in range(first, first + n // RUN):
        block = row + r // 2 * nbytes
        lookup(q, FP4, block + 4 + 16 * (r & 1), 8)
        for k in range(2):
            scales[k] = _small_float(block[2 * (r & 1) + k])
        bytes_run(y + (r - first) * RUN, q, 0, scales)
