"""Contiguous columns of a matrix, such as one of several outputs that one product computed.

    y[n,c]     = x[n,K+c]                          c = 0 .. C-1

    dx[n,K+c]  = dy[n,c], and 0 elsewhere; if accumulate is set: dx[n,K+c] += dy[n,c]

N rows of X columns, of which C from column K on are copied. float32, C-contiguous. dx is
overwritten. If accumulate is set, its C columns are added to, and the others are not touched.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.columns cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        memcpy(a.y + n * a.C, a.x + n * a.X + a.K, a.C * sizeof(float))


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N if a.C else 0)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, c
    cdef float* d
    for n in range(first, last):
        d = a.dx + n * a.X
        if not a.accumulate:
            memset(d, 0, a.X * sizeof(float))
        for c in range(a.C):
            d[a.K + c] += a.dy[n * a.C + c]


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N)


def _columns_fit(where, arrays, sizes, options):
    X, C, K = (sizes[name] for name in "XCK")
    if not 0 <= K <= X - C:
        raise ValueError(f"{where}: needs K from 0 to {X - C}, for {C} of {X} columns; got {K}")


forward = entry(<kernel_fn>_forward, "y[N C] <- x[N X] | K", NULL, _columns_fit)
backward = entry(<kernel_fn>_backward, "dx[N X]+ <- dy[N C] | K", NULL, _columns_fit)
