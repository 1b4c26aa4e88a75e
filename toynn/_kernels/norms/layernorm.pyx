"""LayerNorm over the last axis.

    mean[n] = mean_c x[n,c]
    r[n]    = 1 / sqrt(mean_c (x[n,c] - mean[n])^2 + eps)
    h[n,c]  = (x[n,c] - mean[n]) r[n]
    y[n,c]  = h[n,c] w[c] + b[c]

    g[n,c]  = w[c] dy[n,c]
    dx[n,c] = r[n] (g[n,c] - mean_k g[n,k] - h[n,c] mean_k g[n,k] h[n,k])
    dw[c]   = sum_n dy[n,c] h[n,c]         db[c] = sum_n dy[n,c]

A plain step in C: bench/rungs/rows.c. mean_ counts a row of no channels as 0, here and in rmsnorm.
N rows (B*T flattened), C channels. float32, C-contiguous; outputs never alias inputs.
Saved for backward: mean (N,), r (N,). dx is overwritten; dw and db are overwritten, or added to if
accumulate is set. Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450, section 3.
"""
from libc.math cimport sqrtf

from toynn._kernels.base._common cimport dot_, mean_, sum_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, float* mean, float* r, const float* x, const float* w, const float* b,
    Py_ssize_t C, float eps,
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float r_n, m = mean_(sum_(x, C), C)
    for c in range(C):
        y[c] = x[c] - m
    r_n = 1 / sqrtf(mean_(dot_(y, y, C), C) + eps)
    for c in range(C):
        y[c] = y[c] * r_n * w[c] + b[c]
    mean[0] = m
    r[0] = r_n


cdef inline void backward_row(
    float* dx, const float* dy, const float* x, const float* w, float mean, float r, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float mean_g, mean_gh
    # sum(g x) - mean sum(g) would lose digits; x - mean does not. dx holds h w in the meantime.
    for c in range(C):
        dx[c] = (x[c] - mean) * r * w[c]
    mean_gh = mean_(dot_(dx, dy, C), C)
    mean_g = mean_(dot_(w, dy, C), C)
    for c in range(C):
        dx[c] = r * (w[c] * dy[c] - mean_g - (x[c] - mean) * r * mean_gh)


cdef inline void backward_sums(
    float* dw, float* db, const float* dy, const float* x, float mean, float r, Py_ssize_t width
) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(width):
        dw[c] += dy[c] * (x[c] - mean) * r
        db[c] += dy[c]


forward = entry("rows N: y[N C]; mean[N] r[N] <- x[N C] w[C] b[C] | eps=1e-5")
backward = entry(
    "rows N, sums C over N: dx[N C] dw[C]?+ db[C]?+ <- dy[N C] x[N C] w[C] mean[N] r[N]"
)
