"""A soft cap: small values hardly change, and no value exceeds the cap.

    y  = cap tanh(x / cap)
    dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)

n elements. float32, C-contiguous. Saved for backward: y. dx is overwritten. In place: y may be x,
dx may be dy. Gemma 2 bounds its logits this way.
Source: Gemma Team 2024, arXiv:2408.00118, section 2.
"""
from toynn._kernels.base._common cimport tanh_
from toynn._kernels.base.entry cimport entry


cdef inline float forward_element(float x, float cap) noexcept nogil:
    cdef float slope = 0
    return cap * tanh_(x / cap, &slope)


cdef inline float backward_element(float dy, float y, float cap) noexcept nogil:
    cdef float t = y / cap
    return dy * ((1 - t) * (1 + t))


forward = entry("elements n: y[n]=x <- x[n] | float cap")
backward = entry("elements n: dx[n]=dy <- dy[n] y[n] | float cap")
