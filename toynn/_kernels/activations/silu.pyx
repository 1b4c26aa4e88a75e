"""SiLU (swish): x times its sigmoid.

    y  = x s                    s = 1 / (1 + e^-x)
    dx = dy (s + x s (1 - s))

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, section 2.
"""
from toynn._kernels.base._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels.base.entry cimport entry


cdef inline float forward_element(float x) noexcept nogil:
    return x * sigmoid_(x)


cdef inline float backward_element(float dy, float x) noexcept nogil:
    cdef float slope = 0
    cdef float s = sigmoid_slope_(x, &slope)
    return dy * (s + x * slope)


forward = entry("elements n: y[n]=x <- x[n]")
backward = entry("elements n: dx[n]=dy <- dy[n] x[n]")
