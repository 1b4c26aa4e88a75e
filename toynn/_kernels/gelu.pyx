"""GELU: x times the chance that a standard normal number is below x, exactly or by its tanh form.

exact:  y  = x P(x)                   P(x) = (1 + erf(x / sqrt 2)) / 2
        dx = dy (P(x) + x p(x))       p(x) = e^(-x^2 / 2) / sqrt(2 pi)

tanh:   y  = x s(u)                   s(u) = 1 / (1 + e^-u),  u = sqrt(8 / pi) (x + 0.044715 x^3)
        dx = dy (s + x s (1 - s) u')  u'   = sqrt(8 / pi) (1 + 0.134145 x^2)

The usual x (1 + tanh(u / 2)) / 2 is the tanh form too: (1 + tanh(u / 2)) / 2 = s(u).
n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
"""

from toynn._kernels._gelu cimport gelu_exact, gelu_tanh, slope_exact, slope_tanh
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.gelu cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    if a.exact:
        for i in range(first, last):
            a.y[i] = gelu_exact(a.x[i])
    else:
        for i in range(first, last):
            a.y[i] = gelu_tanh(a.x[i])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    if a.exact:
        for i in range(first, last):
            a.dx[i] = a.dy[i] * slope_exact(a.x[i])
    else:
        for i in range(first, last):
            a.dx[i] = a.dy[i] * slope_tanh(a.x[i])


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n] | exact=0")
backward = entry(<kernel_fn>_backward, "dx[n]=dy <- dy[n] x[n] | exact=0")
