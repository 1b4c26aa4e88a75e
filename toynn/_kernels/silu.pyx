"""SiLU (swish): x times its sigmoid.

    y  = x s                    s = 1 / (1 + e^-x)
    dx = dy (s + x s (1 - s))

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, section 2.
"""

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.silu cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline float _slope(float x) noexcept nogil:
    cdef float ds = 0
    cdef float s = sigmoid_slope_(x, &ds)
    return s + x * ds


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = a.x[i] * sigmoid_(a.x[i])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.dx[i] = a.dy[i] * _slope(a.x[i])


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n]")
backward = entry(<kernel_fn>_backward, "dx[n]=dy <- dy[n] x[n]")
