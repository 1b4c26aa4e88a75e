"""y of a few rows of x over rows of blocks, whose codes are multiplied as they are (dot_int8.h).

The rows of x are rounded to 8 bits once, into scratch memory: of each its codes, then the scales of
its blocks of 32, then the scales times the sums of their codes.
"""
from cython.parallel cimport parallel, prange
from libc.stdint cimport int8_t, uint8_t

from toynn._kernels._common cimport flush_denormals, fpstate, restore_fpstate, team
from toynn._kernels._panels cimport LINE, Operand, aligned, blocks_of, row_of

cdef extern from "dot_int8.h" nogil:
    bint HAS_INT8 "TN_INT8"
    void round_to_int8 "tn_round_to_int8" (
        int8_t* q, float* scale, float* sum, const float* x, Py_ssize_t n
    ) noexcept
    float dot_int8 "tn_dot_int8" (
        int type, const uint8_t* w, const int8_t* q, const float* scale, const float* sum,
        Py_ssize_t n,
    ) noexcept

cdef enum:
    TERMS_OF_A_SCALE = 32
    ROWS_OF_A_TASK = 16


cdef inline bint in_int8(Py_ssize_t type) noexcept nogil:
    """Whether rows of a type are multiplied in 8 bits: Q4_0, Q8_0, Q4_K, Q6_K."""
    return type == 2 or type == 8 or type == 12 or type == 14


cdef inline Py_ssize_t _row_floats(Py_ssize_t K) noexcept nogil:
    return blocks_of(K // 4 + 2 * (K // TERMS_OF_A_SCALE), LINE) * LINE


cdef inline Py_ssize_t int8_floats(Py_ssize_t M, Py_ssize_t K) noexcept nogil:
    """Floats of scratch memory for M rows of K terms."""
    return M * _row_floats(K) + LINE


cdef inline void _dot_row(
    float* y, Py_ssize_t N, const Operand* w, Py_ssize_t n, int type, const float* rounded,
    Py_ssize_t M, Py_ssize_t K,
) noexcept nogil:
    """Column n of y."""
    cdef const float* row
    cdef const float* scale
    cdef Py_ssize_t m
    for m in range(M):
        row = rounded + m * _row_floats(K)
        scale = row + K // 4
        y[m * N + n] = dot_int8(
            type, row_of(w, n), <const int8_t*>row, scale, scale + K // TERMS_OF_A_SCALE, K
        )


cdef inline void multiply_in_int8(
    float* y, const float* x, const Operand* w, int type, Py_ssize_t M, Py_ssize_t K,
    void* workspace, int n_threads,
) noexcept nogil:
    """y (M,N) = x (M,K) w (N,K)^T; each element is summed by one thread, in order."""
    cdef float* rounded = aligned(workspace)
    cdef float* row
    cdef Py_ssize_t m, i, n, N = w.size
    cdef fpstate before = 0
    for m in range(M):
        row = rounded + m * _row_floats(K)
        round_to_int8(
            <int8_t*>row, row + K // 4, row + K // 4 + K // TERMS_OF_A_SCALE, x + m * K, K
        )
    with parallel(num_threads=team(n_threads)):
        before = flush_denormals()
        for i in prange(blocks_of(N, ROWS_OF_A_TASK), schedule="static"):
            for n in range(i * ROWS_OF_A_TASK, min((i + 1) * ROWS_OF_A_TASK, N)):
                _dot_row(y, N, w, n, type, rounded, M, K)
        restore_fpstate(before)
