"""Gaussian top-k: ReLU above a cutoff that a set share of each row exceeds, if it is Gaussian.

    mean[n] = mean_c x[n,c],  dev[n] = sqrt(mean_c (x[n,c] - mean)^2)
    t[n]    = mean[n] + z dev[n]
    y[n,c]  = max(x[n,c] - t[n], 0)

    dx[n,c] = [x > t] dy[n,c] - S[n] (1 + z (x[n,c] - mean[n]) / dev[n]) / C
    S[n]    = sum_c [x > t] dy[n,c]

z is the quantile of the standard normal distribution: for 1.645, 5 of 100 numbers of a Gaussian row
exceed t. N rows of C numbers, never sorted. float32, C-contiguous. Saved for backward: mean and dev
(N,); where dev is 0, so is its gradient. dx is overwritten; in place: it may be dy.
Source: You et al. 2025, Spark Transformer, arXiv:2506.06644, section 3.
"""
from libc.math cimport sqrtf

from toynn._kernels._common cimport dot_, sum_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.gaussian_topk cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, c, C = a.C
    cdef float mean, dev, t, d
    cdef const float* x
    cdef float* y
    for n in range(first, last):
        x = a.x + n * C
        y = a.y + n * C
        mean = sum_(x, C) / C if C else 0
        for c in range(C):
            y[c] = x[c] - mean
        dev = sqrtf(dot_(y, y, C) / C) if C else 0
        t = mean + a.z * dev
        for c in range(C):
            d = x[c] - t
            y[c] = 0 if d < 0 else d  # NaN stays NaN
        a.mean[n] = mean
        a.dev[n] = dev


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, c, C = a.C
    cdef float mean, t, total, slope
    cdef const float* x
    cdef const float* dy
    cdef float* dx
    for n in range(first, last):
        x = a.x + n * C
        dy = a.dy + n * C
        dx = a.dx + n * C
        mean = a.mean[n]
        t = mean + a.z * a.dev[n]
        for c in range(C):
            dx[c] = 0 if x[c] <= t else dy[c]
        total = sum_(dx, C) / C
        slope = 0 if a.dev[n] == 0 else total * a.z / a.dev[n]
        for c in range(C):
            dx[c] -= total + slope * (x[c] - mean)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N if a.C else 0)


forward = entry(<kernel_fn>_forward, "y[N C]; mean[N] dev[N] <- x[N C] | float z")
backward = entry(
    <kernel_fn>_backward, "dx[N C]=dy <- dy[N C] x[N C] mean[N] dev[N] | float z"
)
