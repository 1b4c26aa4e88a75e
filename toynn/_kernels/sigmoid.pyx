"""Sigmoid: a score between 0 and 1 for each element. Some routers use it instead of softmax.

    y  = s                      s = 1 / (1 + e^-x)
    dx = dy s (1 - s)

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten. Saved for
backward: x, because a slope computed from y near 1 would lose digits to cancellation.
Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.sigmoid cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = sigmoid_(a.x[i])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    cdef float slope = 0
    for i in range(first, last):
        sigmoid_slope_(a.x[i], &slope)
        a.dx[i] = a.dy[i] * slope


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n]")
backward = entry(<kernel_fn>_backward, "dx[n]=dy <- dy[n] x[n]")
