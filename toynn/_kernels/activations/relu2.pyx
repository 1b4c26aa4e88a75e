"""Squared ReLU: the activation in the middle of an MLP without a gate.

    y  = max(x, 0)^2
    dx = 2 max(x, 0) dy

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: So et al. 2021 (Primer), arXiv:2109.08668, section 3.
"""
from toynn._kernels.base.entry cimport entry


cdef inline float _relu(float x) noexcept nogil:
    """max(x, 0); NaN stays NaN."""
    return 0 if x < 0 else x


cdef inline float forward_element(float x) noexcept nogil:
    return _relu(x) * _relu(x)


cdef inline float backward_element(float dy, float x) noexcept nogil:
    return 2 * _relu(x) * dy


forward = entry("elements n: y[n]=x <- x[n]")
backward = entry("elements n: dx[n]=dy <- dy[n] x[n]")
