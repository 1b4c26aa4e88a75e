"""Rows of x in 8 bits, and their products with quantized rows of w (dot_int8.h).

Each row is rounded once, into scratch memory. Its codes come first, then the scales of its blocks
of 32, then each scale times the sum of its block's codes. For smmla two rows are stored as a pair.
"""
from libc.stdint cimport uint8_t

cdef enum:
    LINE = 16  # floats in a cache line

cdef extern from "dot_int8.h" nogil:
    bint HAS_INT8 "TN_INT8"  # whether this build multiplies in 8 bits
    int UNITS_OF_BUILD "TN_UNITS"  # 8-bit instructions that this build may use: cpu.int8_unit
    # y[m * y_row + i] for N rows of w (as bytes) by M rounded rows of x, of n terms.
    ctypedef void (*dot_fn "tn_dot_fn")(
        float* y, Py_ssize_t y_row, const uint8_t* w, Py_ssize_t w_row, Py_ssize_t N,
        const float* x, Py_ssize_t x_row, Py_ssize_t M, Py_ssize_t n,
    ) noexcept nogil
    dot_fn dot_int8_of "tn_dot_int8_of" (int type, int unit) noexcept
    dot_fn dot_codes_of "tn_dot_codes_of" (int type, Py_ssize_t M) noexcept
    void _round "tn_round_to_int8" (
        float* rounded, Py_ssize_t x_row, const float* x, Py_ssize_t M, Py_ssize_t n, int unit
    ) noexcept
    Py_ssize_t _floats "tn_int8_floats" (Py_ssize_t n) noexcept


cdef inline bint in_int8(Py_ssize_t type) noexcept nogil:
    """Whether rows of a type are multiplied in 8 bits: Q4_0, Q8_0, Q4_K, Q6_K."""
    return dot_int8_of(type, 0) != NULL


cdef inline Py_ssize_t rounded_row(Py_ssize_t K) noexcept nogil:
    """Floats from one rounded row to the next."""
    return (_floats(K) + LINE - 1) // LINE * LINE


cdef inline Py_ssize_t int8_floats(Py_ssize_t M, Py_ssize_t K) noexcept nogil:
    """Floats of scratch memory for M rows of K terms."""
    return M * rounded_row(K) + LINE


cdef inline void round_rows(
    float* rounded, const float* x, Py_ssize_t M, Py_ssize_t K, int unit
) noexcept nogil:
    _round(rounded, rounded_row(K), x, M, K, unit)
