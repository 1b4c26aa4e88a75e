"""A soft cap: small values hardly change, and no value exceeds the cap.

    y  = cap tanh(x / cap)
    dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)

n elements. float32, C-contiguous. Saved for backward: y. dx is overwritten. In place: y may be x,
dx may be dy. Gemma 2 bounds its logits this way.
Source: Gemma Team 2024, arXiv:2408.00118, section 2.
"""

from toynn._kernels._common cimport tanh_
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.softcap cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    cdef float slope = 0, cap = a.cap
    for i in range(first, last):
        a.y[i] = cap * tanh_(a.x[i] / cap, &slope)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    cdef float t, cap = a.cap
    for i in range(first, last):
        t = a.y[i] / cap
        a.dx[i] = a.dy[i] * ((1 - t) * (1 + t))


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n] | float cap")
backward = entry(<kernel_fn>_backward, "dx[n]=dy <- dy[n] y[n] | float cap")
