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

from toynn._kernels.base._common cimport dot_, mean_, sum_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, float* mean, float* dev, const float* x, Py_ssize_t C, float z
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float m = mean_(sum_(x, C), C), s, t, d
    for c in range(C):
        y[c] = x[c] - m
    s = sqrtf(mean_(dot_(y, y, C), C))
    t = m + z * s
    for c in range(C):
        d = x[c] - t
        y[c] = 0 if d < 0 else d  # NaN stays NaN
    mean[0] = m
    dev[0] = s


cdef inline void backward_row(
    float* dx, const float* dy, const float* x, float mean, float dev, Py_ssize_t C, float z
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float t = mean + z * dev, total, slope
    for c in range(C):
        dx[c] = 0 if x[c] <= t else dy[c]
    total = mean_(sum_(dx, C), C)
    slope = 0 if dev == 0 else total * z / dev
    for c in range(C):
        dx[c] -= total + slope * (x[c] - mean)


forward = entry("rows N: y[N C]; mean[N] dev[N] <- x[N C] | float z")
backward = entry("rows N: dx[N C]=dy <- dy[N C] x[N C] mean[N] dev[N] | float z")
