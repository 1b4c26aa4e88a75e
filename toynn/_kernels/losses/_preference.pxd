"""Shared by the preference losses: softplus, sigmoid, and the log p of a completion."""
from libc.math cimport exp, log1p


cdef inline double softplus(double x) noexcept nogil:
    """log(1 + e^x)."""
    return x + log1p(exp(-x)) if x > 0 else log1p(exp(x))


cdef inline double sigmoid(double x) noexcept nogil:
    """1 / (1 + e^-x)."""
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


cdef inline double completion(const float* sums, Py_ssize_t s) noexcept nogil:
    """log p of the completion of sequence s; sums (S,2) holds its losses."""
    return -<double>sums[2 * s + 1]
