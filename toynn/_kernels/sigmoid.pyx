"""Sigmoid: a score between 0 and 1, each by itself; a router's, where it is not a softmax.

    y  = s                      s = 1 / (1 + e^-x)
    dx = dy s (1 - s)

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten. Saved for
backward: x, of which the slope has no cancellation; of y near 1 it had.
Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._entry cimport entry
from toynn._kernels._pointwise cimport parallel_elements, unary_backward, unary_forward
from toynn._kernels.abi cimport KernelArgs


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i
    for i in range(first, last):
        y[i] = sigmoid_(x[i])


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t i
    cdef float slope = 0
    for i in range(first, last):
        sigmoid_slope_(x[i], &slope)
        dx[i] = dy[i] * slope


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


def forward(float[::1] y, const float[::1] x, int n_threads=1):
    """Overwrite y (n,) from x (n,)."""
    cdef KernelArgs a
    unary_forward("sigmoid.forward", _forward, &a, y, x, n_threads)


def backward(float[::1] dx, const float[::1] dy, const float[::1] x, int n_threads=1):
    """Overwrite dx (n,) from dy (n,) and x (n,)."""
    cdef KernelArgs a
    unary_backward("sigmoid.backward", _backward, &a, dx, dy, "x", x, n_threads)


entries = {
    "forward": entry(_forward, "y x", sizes="n"),
    "backward": entry(_backward, "dx dy x", sizes="n"),
}
