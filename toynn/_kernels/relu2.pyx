"""Squared ReLU: the activation in the middle of an MLP without a gate.

    y  = max(x, 0)^2
    dx = 2 max(x, 0) dy

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: So et al. 2021 (Primer), arXiv:2109.08668, section 3.
"""

from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.relu2 cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline float _relu(float x) noexcept nogil:
    """max(x, 0); NaN stays NaN."""
    return 0 if x < 0 else x


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = _relu(a.x[i]) * _relu(a.x[i])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.dx[i] = 2 * _relu(a.x[i]) * a.dy[i]


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n]")
backward = entry(<kernel_fn>_backward, "dx[n]=dy <- dy[n] x[n]")
