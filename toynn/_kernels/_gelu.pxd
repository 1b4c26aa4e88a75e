"""GELU of one number and its slope, for gelu and for matmul's epilogue. Formulas: gelu.pyx."""
from toynn._kernels._common cimport erf_, exp_, sigmoid_, sigmoid_slope_


cdef inline float _below(float x) noexcept nogil:
    """P(x)."""
    return <float>0.5 + <float>0.5 * erf_(x * <float>0.70710678)


cdef inline float _u(float x) noexcept nogil:
    return x * (<float>1.5957691 + <float>0.07135481 * x * x)


cdef inline float gelu_exact(float x) noexcept nogil:
    return x * _below(x)


cdef inline float gelu_tanh(float x) noexcept nogil:
    return x * sigmoid_(_u(x))


cdef inline float slope_exact(float x) noexcept nogil:
    return _below(x) + x * <float>0.39894228 * exp_(<float>-0.5 * x * x)


cdef inline float slope_tanh(float x) noexcept nogil:
    cdef float du = <float>1.5957691 + <float>0.21406444 * x * x
    cdef float ds = 0
    cdef float s = sigmoid_slope_(_u(x), &ds)
    return s + x * ds * du
