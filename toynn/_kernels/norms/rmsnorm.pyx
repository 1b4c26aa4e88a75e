"""RMSNorm over the last axis.

    r[n]    = 1 / sqrt(mean_c x[n,c]^2 + eps)
    y[n,c]  = x[n,c] r[n] w[c]

    dx[n,c] = r[n] (w[c] dy[n,c] - x[n,c] r[n]^2 mean_k w[k] dy[n,k] x[n,k])
    dw[c]   = sum_n dy[n,c] x[n,c] r[n]

docs/tutorial-kernel.md reads this file line by line.
N rows (B*T flattened), C channels. float32, C-contiguous; outputs never alias inputs.
Saved for backward: r (N,). dx is overwritten; dw is overwritten, or added to if accumulate is set.
Source: Zhang & Sennrich 2019, arXiv:1910.07467.
"""
from libc.math cimport sqrtf

from toynn._kernels.base._common cimport dot_, mean_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, float* r, const float* x, const float* w, Py_ssize_t C, float eps
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float r_n = 1 / sqrtf(mean_(dot_(x, x, C), C) + eps)
    for c in range(C):
        y[c] = x[c] * r_n * w[c]
    r[0] = r_n


cdef inline void backward_row(
    float* dx, const float* dy, const float* x, const float* w, float r, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float k
    for c in range(C):
        dx[c] = w[c] * dy[c]
    k = mean_(dot_(dx, x, C), C) * r * r
    for c in range(C):
        dx[c] = r * (dx[c] - x[c] * k)


cdef inline void backward_sums(
    float* dw, const float* dy, const float* x, float r, Py_ssize_t width
) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(width):
        dw[c] += dy[c] * x[c] * r


forward = entry("rows N: y[N C]; r[N] <- x[N C] w[C] | eps=1e-5")
backward = entry("rows N, sums C over N: dx[N C] dw[C]?+ <- dy[N C] x[N C] w[C] r[N]")
