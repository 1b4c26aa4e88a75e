"""Contiguous columns of a matrix, such as one of several outputs that one product computed.

    y[n,c]     = x[n,K+c]                          c = 0 .. C-1

    dx[n,K+c]  = dy[n,c], and 0 elsewhere; if accumulate is set: dx[n,K+c] += dy[n,c]

    place: y[n,K+c] = x[n,c], and elsewhere y stays as it is; its gradient is forward

N rows of X columns, of which C from column K on are copied. float32, C-contiguous. dx is
overwritten. If accumulate is set, its C columns are added to, and the others are not touched.
"""
from libc.string cimport memcpy, memset

from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, const float* x, Py_ssize_t C, Py_ssize_t K
) noexcept nogil:
    memcpy(y, x + K, C * sizeof(float))


cdef inline void backward_row(
    float* dx, const float* dy, Py_ssize_t X, Py_ssize_t C, Py_ssize_t K, bint accumulate
) noexcept nogil:
    cdef Py_ssize_t c
    if not accumulate:
        memset(dx, 0, X * sizeof(float))
    for c in range(C):
        dx[K + c] += dy[c]


cdef inline void place_row(
    float* y, const float* x, Py_ssize_t C, Py_ssize_t K
) noexcept nogil:
    memcpy(y + K, x, C * sizeof(float))


def _columns_fit(where, arrays, sizes, options):
    X, C, K = (sizes[name] for name in "XCK")
    if not 0 <= K <= X - C:
        raise ValueError(f"{where}: needs K from 0 to {X - C}, for {C} of {X} columns; got {K}")


forward = entry("rows N: y[N C] <- x[N X] | K", _columns_fit)
backward = entry("rows N: dx[N X]+ <- dy[N C] | K", _columns_fit)
place = entry("rows N: y[N X]! <- x[N C] | K", _columns_fit)
