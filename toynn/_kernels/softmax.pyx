"""Softmax over the last axis.

    y[n,c]  = e^(x[n,c] - max_k x[n,k]) / sum_k e^(x[n,k] - max_j x[n,j])
    dx[n,c] = y[n,c] (dy[n,c] - sum_k dy[n,k] y[n,k])

N rows, C channels. float32, C-contiguous; sums in 16 partial sums. dx is overwritten.
In place: y may be x, dx may be dy. -infinity gives 0. A row of nothing but -infinity, or with a NaN
or +infinity, gives NaN. The maximum only keeps e^x finite: it cancels from the result.
"""

from toynn._kernels._common cimport dot_, exp_, max_, sum_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.softmax cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline void _row_forward(float* y, const float* x, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    cdef float scale, most = max_(x, C)
    for c in range(C):
        y[c] = exp_(x[c] - most)
    scale = <float>1.0 / sum_(y, C)
    for c in range(C):
        y[c] *= scale


cdef inline void _row_backward(
    float* dx, const float* dy, const float* y, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float total = dot_(dy, y, C)
    for c in range(C):
        dx[c] = y[c] * (dy[c] - total)


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.y + n * a.C, a.x + n * a.C, a.C)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N if a.C else 0)  # rows of nothing take no time


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_backward(a.dx + n * a.C, a.dy + n * a.C, a.y + n * a.C, a.C)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N if a.C else 0)  # rows of nothing take no time


forward = entry(<kernel_fn>_forward, "y[N C]=x <- x[N C]")
backward = entry(<kernel_fn>_backward, "dx[N C]=dy <- dy[N C] y[N C]")
