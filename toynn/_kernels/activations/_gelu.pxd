"""GELU of one number and its slope, for gelu and for matmul's epilogue. Formulas: gelu.pyx."""
from toynn._kernels.base._common cimport erf_, exp_, sigmoid_, sigmoid_slope_


cdef inline float _below(float x) noexcept nogil:
    """P(x)."""
    cdef float half = 0.5, scale = 0.70710678  # 1 / sqrt(2)
    return half + half * erf_(x * scale)


cdef inline float _u(float x) noexcept nogil:
    cdef float root = 1.5957691, cubic = 0.07135481  # sqrt(8 / pi), and 0.044715 times that
    return x * (root + cubic * x * x)


cdef inline float gelu_exact(float x) noexcept nogil:
    return x * _below(x)


cdef inline float gelu_tanh(float x) noexcept nogil:
    return x * sigmoid_(_u(x))


cdef inline float slope_exact(float x) noexcept nogil:
    cdef float top = 0.39894228, half = -0.5  # 1 / sqrt(2 pi): p(0)
    return _below(x) + x * top * exp_(half * x * x)


cdef inline float slope_tanh(float x) noexcept nogil:
    cdef float root = 1.5957691, cubic = 0.21406444  # sqrt(8 / pi), and 0.134145 times that
    cdef float du = root + cubic * x * x, ds = 0
    cdef float s = sigmoid_slope_(_u(x), &ds)
    return s + x * ds * du
