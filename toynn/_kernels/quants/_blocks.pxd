"""Small quantized blocks and half floats: bytes in, float32 out, one inline function for each type.

A row is cut into blocks of 32. A block stores small integers (codes) and float16 factors: d and m.
q[j] is the code of element j: signed in Q8_0, unsigned in the other types.

    type   bytes  in this order                element j
    F16        2  a float16                    the same number
    BF16       2  the upper half of a float32  the same number
    Q8_0      34  d, 32 int8                   y[j] = d q[j]
    Q4_0      18  d, 16 of low                 y[j] = d (q[j] - 8)
    Q4_1      20  d, m, 16 of low              y[j] = d q[j] + m
    Q5_0      22  d, 4 of high, 16 of low      y[j] = d (q[j] - 16)
    Q5_1      24  d, m, 4 of high, 16 of low   y[j] = d q[j] + m

low: the lower 4 bits of the codes; bits 0..3 of the 16 bytes are elements 0..15, bits 4..7 are
elements 16..31. high: bit j of the four bytes is bit 4 of q[j]. All numbers are little-endian.

No product rounds: a float16 has 11 bits and a code 8; a float32 has 24. So fused multiply-adds
change nothing. No step here reads or makes a subnormal float32, except that BF16 copies them as
integers. So the bits are the same whether the caller flushes denormals or not.
Source: ggml-common.h and dequantize_row_* of ggml-quants.c in ggml; the GGUF specification.
"""
from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    /* Floats that no other pointer reaches. Otherwise the bytes that are read might alias them. */
    typedef float *__restrict tn_floats;
    """
    ctypedef float* floats "tn_floats"

cdef extern from "codes.h" nogil:
    float half "tn_half" (uint16_t h) noexcept
    void halves "tn_halves" (float* y, const uint8_t* raw, Py_ssize_t n) noexcept
    void bytes_run "tn_bytes_run" (
        float* y, const int8_t* q, int offset, const float* scale
    ) noexcept
    void nibbles_run "tn_nibbles_run" (
        float* y, const uint8_t* low, const uint8_t* high, int offset, float scale,
        const float* least,
    ) noexcept

cdef enum:
    RUN = 32  # elements of a block

cdef union _Bits:
    float f
    int32_t i


cdef inline uint16_t word(const uint8_t* raw) noexcept nogil:
    """Two bytes, the lower one first, at any address."""
    return <uint16_t>(raw[0] | (raw[1] << 8))


cdef inline float bfloat(uint16_t h) noexcept nogil:
    """The bfloat16 of these bits: the upper half of a float32."""
    cdef _Bits bits
    bits.i = <int32_t>(<uint32_t>h << 16)
    return bits.f


# Each rows_TYPE overwrites y (n,) with elements j .. j + n - 1 of a row, from the row's bytes. They
# are whole blocks of nbytes each.
# Loops over elements have 32 rounds: gcc unrolls loops of 16 before it could vectorise them.

cdef inline void rows_f16(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    halves(y, row + 2 * j, n)


cdef inline void rows_bf16(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = bfloat(word(row + 2 * (j + i)))


cdef inline void rows_q8_0(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* raw = row + j // RUN * nbytes
    cdef float[2] d
    cdef Py_ssize_t i
    for i in range(n // RUN):
        d[0] = d[1] = half(word(raw + i * nbytes))
        bytes_run(y + i * RUN, <const int8_t*>raw + i * nbytes + 2, 0, d)


cdef inline void rows_q4_0(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* block
    cdef Py_ssize_t i
    for i in range(n // RUN):
        block = row + (j // RUN + i) * nbytes
        nibbles_run(y + i * RUN, block + 2, NULL, 8, half(word(block)), NULL)


cdef inline void rows_q4_1(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* block
    cdef Py_ssize_t i
    cdef float m
    for i in range(n // RUN):
        block = row + (j // RUN + i) * nbytes
        m = half(word(block + 2))
        nibbles_run(y + i * RUN, block + 4, NULL, 0, half(word(block)), &m)


cdef inline void rows_q5_0(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* block
    cdef Py_ssize_t i
    for i in range(n // RUN):
        block = row + (j // RUN + i) * nbytes
        nibbles_run(y + i * RUN, block + 6, block + 2, 16, half(word(block)), NULL)


cdef inline void rows_q5_1(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, Py_ssize_t nbytes
) noexcept nogil:
    cdef const uint8_t* block
    cdef Py_ssize_t i
    cdef float m
    for i in range(n // RUN):
        block = row + (j // RUN + i) * nbytes
        m = half(word(block + 2))
        nibbles_run(y + i * RUN, block + 8, block + 4, 0, half(word(block)), &m)
