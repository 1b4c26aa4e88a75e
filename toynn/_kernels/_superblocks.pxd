"""Super-blocks of 256: bytes in, float32 out, one inline function for each type.

Any runs of 32 elements can be had, since a panel of a matrix product may begin in mid-block.

The scales of sub-blocks are small integers themselves, times one float16 for the super-block.
d and m are float16, q[j] is the unsigned code of element j, s its sub-block.

    type   bytes  in this order                            element j
    Q4_K     144  d, m, 12 of scales, 128 of low           y[j] = d a[s] q[j] - m b[s]
    Q5_K     176  d, m, 12 of scales, 32 high, 128 of low  y[j] = d a[s] q[j] - m b[s]
    Q6_K     210  128 of low, 64 of high, 16 int8 a, d     y[j] = d a[s] (q[j] - 32)

low: the lower 4 bits of the codes. In Q4_K and Q5_K, with sub-blocks of 32, bits 0..3 of 32 bytes
are sub-block s and bits 4..7 sub-block s + 1 (s even). In Q6_K, with sub-blocks of 16, bits 0..3 of
64 bytes are elements 0..63 of a half block and bits 4..7 its elements 64..127.
high: bit s of byte j % 32 is bit 4 of q[j] (Q5_K); two bits of each of 32 bytes are bits 4 and 5,
the lowest for the first 32 elements of a half block (Q6_K). scales: see scales_k.

No product rounds: 11 bits of a float16, 7 of a scale and 6 of a code fit into the 24 of a float32.
Source: ggml-common.h and dequantize_row_* of ggml-quants.c in ggml; the GGUF specification.
"""
from libc.stdint cimport int8_t, uint8_t

from toynn._kernels._blocks cimport RUN, floats, half, word

cdef enum:
    SUPER = 256  # elements of a super-block
    RUNS = 8     # of 32 elements each

# Each block_TYPE overwrites y with runs s0 .. s1 - 1 of the block whose bytes are raw.
ctypedef void (*block_fn)(floats, const uint8_t*, Py_ssize_t, Py_ssize_t) noexcept nogil


cdef inline void scales_k(uint8_t* a, uint8_t* b, const uint8_t* raw) noexcept nogil:
    """a[0..7] and b[0..7], 6 bits each, from 12 bytes.

    Bytes 0..3 hold a[0..3], bytes 4..7 b[0..3]; their upper 2 bits are those of a[4..7], b[4..7],
    whose lower 4 bits are the two halves of bytes 8..11.
    """
    cdef int s
    for s in range(4):
        a[s] = raw[s] & 63
        b[s] = raw[s + 4] & 63
        a[s + 4] = (raw[s + 8] & 15) | ((raw[s] >> 6) << 4)
        b[s + 4] = (raw[s + 8] >> 4) | ((raw[s + 4] >> 6) << 4)


cdef inline void block_q4_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint8_t a[8]
    cdef uint8_t b[8]
    cdef const uint8_t* low
    cdef float d = half(word(raw)), m = half(word(raw + 2)), scale, least
    cdef Py_ssize_t s
    cdef int j, shift
    scales_k(a, b, raw + 4)
    for s in range(s0, s1):
        low = raw + 16 + (s // 2) * RUN
        shift = 4 * (s & 1)
        scale = d * a[s]
        least = m * b[s]
        for j in range(RUN):
            y[(s - s0) * RUN + j] = scale * ((low[j] >> shift) & 15) - least


cdef inline void block_q5_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef uint8_t a[8]
    cdef uint8_t b[8]
    cdef const uint8_t* high = raw + 16
    cdef const uint8_t* low
    cdef float d = half(word(raw)), m = half(word(raw + 2)), scale, least
    cdef Py_ssize_t s
    cdef int j, shift
    scales_k(a, b, raw + 4)
    for s in range(s0, s1):
        low = raw + 48 + (s // 2) * RUN
        shift = 4 * (s & 1)
        scale = d * a[s]
        least = m * b[s]
        for j in range(RUN):
            y[(s - s0) * RUN + j] = (
                scale * (((low[j] >> shift) & 15) | (((high[j] >> s) & 1) << 4)) - least
            )


cdef inline void block_q6_k(
    floats y, const uint8_t* raw, Py_ssize_t s0, Py_ssize_t s1
) noexcept nogil:
    cdef const int8_t* a = <const int8_t*>raw + 192
    cdef const uint8_t* low
    cdef const uint8_t* high
    cdef float d = half(word(raw + 208)), first, second
    cdef Py_ssize_t s
    cdef int j, shift, pair
    for s in range(s0, s1):  # four runs make a half block
        low = raw + (s // 4) * 64 + (s & 1) * RUN
        high = raw + 128 + (s // 4) * RUN
        shift = 4 * ((s >> 1) & 1)
        pair = 2 * (s & 3)
        first = d * a[2 * s]
        second = d * a[2 * s + 1]
        for j in range(RUN):
            y[(s - s0) * RUN + j] = (first if j < 16 else second) * (
                (((low[j] >> shift) & 15) | (((high[j] >> pair) & 3) << 4)) - 32
            )


cdef inline void _expand_blocks(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n, block_fn block, Py_ssize_t nbytes
) noexcept nogil:
    """Elements j .. j + n - 1 of a row, whole runs, from the blocks in which they are."""
    cdef Py_ssize_t i, r = j // RUN, end = (j + n) // RUN, last
    for i in range(r // RUNS, (end + RUNS - 1) // RUNS):
        last = min(end, (i + 1) * RUNS)
        block(y, row + i * nbytes, r - i * RUNS, last - i * RUNS)
        y += (last - r) * RUN
        r = last


cdef inline void expand_q4_k(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n
) noexcept nogil:
    _expand_blocks(y, row, j, n, block_q4_k, 144)


cdef inline void expand_q5_k(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n
) noexcept nogil:
    _expand_blocks(y, row, j, n, block_q5_k, 176)


cdef inline void expand_q6_k(
    floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n
) noexcept nogil:
    _expand_blocks(y, row, j, n, block_q6_k, 210)
