"""Softmax over the last axis.

    y[n,c]  = e^(x[n,c] - max_k x[n,k]) / sum_k e^(x[n,k] - max_j x[n,j])
    dx[n,c] = y[n,c] (dy[n,c] - sum_k dy[n,k] y[n,k])

Plain steps that lead here: bench/rungs/rows.c. Attention and cross_entropy have softmax built in.
N rows, C channels. float32, C-contiguous; sums in 16 partial sums. dx is overwritten.
In place: y may be x, dx may be dy. -infinity gives 0. A row of nothing but -infinity, or with a NaN
or +infinity, gives NaN. The maximum only keeps e^x finite: it cancels from the result.
"""
from toynn._kernels.base._common cimport dot_, exp_, max_, sum_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(float* y, const float* x, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    cdef float scale, most = max_(x, C)
    for c in range(C):
        y[c] = exp_(x[c] - most)
    scale = <float>1.0 / sum_(y, C)
    for c in range(C):
        y[c] *= scale


cdef inline void backward_row(
    float* dx, const float* dy, const float* y, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float total = dot_(dy, y, C)
    for c in range(C):
        dx[c] = y[c] * (dy[c] - total)


forward = entry("rows N: y[N C]=x <- x[N C]")
backward = entry("rows N: dx[N C]=dy <- dy[N C] y[N C]")
