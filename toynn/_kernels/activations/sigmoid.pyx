"""Sigmoid: a score between 0 and 1 for each element. Some routers use it instead of softmax.

    y  = s                      s = 1 / (1 + e^-x)
    dx = dy s (1 - s)

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten. Saved for
backward: x, because a slope computed from y near 1 would lose digits to cancellation.
Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""
from toynn._kernels.base._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels.base.entry cimport entry


cdef inline float forward_element(float x) noexcept nogil:
    return sigmoid_(x)


cdef inline float backward_element(float dy, float x) noexcept nogil:
    cdef float slope = 0
    sigmoid_slope_(x, &slope)
    return dy * slope


forward = entry("elements n: y[n]=x <- x[n]")
backward = entry("elements n: dx[n]=dy <- dy[n] x[n]")
