"""GELU: x times the chance that a standard normal number is below x, exactly or by its tanh form.

exact:  y  = x P(x)                   P(x) = (1 + erf(x / sqrt 2)) / 2
        dx = dy (P(x) + x p(x))       p(x) = e^(-x^2 / 2) / sqrt(2 pi)

tanh:   y  = x s(u)                   s(u) = 1 / (1 + e^-u),  u = sqrt(8 / pi) (x + 0.044715 x^3)
        dx = dy (s + x s (1 - s) u')  u'   = sqrt(8 / pi) (1 + 0.134145 x^2)

The usual x (1 + tanh(u / 2)) / 2 is the tanh form too: (1 + tanh(u / 2)) / 2 = s(u).
n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
"""

from toynn._kernels._entry cimport entry
from toynn._kernels._gelu cimport gelu_exact, gelu_tanh, slope_exact, slope_tanh
from toynn._kernels._pointwise cimport parallel_elements, unary_backward, unary_forward
from toynn._kernels.abi cimport KernelArgs


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i
    cdef bint exact = a.n[1] != 0
    if exact:
        for i in range(first, last):
            y[i] = gelu_exact(x[i])
    else:
        for i in range(first, last):
            y[i] = gelu_tanh(x[i])


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t i
    cdef bint exact = a.n[1] != 0
    if exact:
        for i in range(first, last):
            dx[i] = dy[i] * slope_exact(x[i])
    else:
        for i in range(first, last):
            dx[i] = dy[i] * slope_tanh(x[i])


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


def forward(float[::1] y, const float[::1] x, bint exact=False, int n_threads=1):
    """Overwrite y (n,) from x (n,): the tanh form, or the exact one."""
    cdef KernelArgs a
    a.n[1] = exact
    unary_forward("gelu.forward", _forward, &a, y, x, n_threads)


def backward(
    float[::1] dx, const float[::1] dy, const float[::1] x, bint exact=False, int n_threads=1
):
    """Overwrite dx (n,) from dy (n,) and x (n,), as ``forward`` was called."""
    cdef KernelArgs a
    a.n[1] = exact
    unary_backward("gelu.backward", _backward, &a, dx, dy, "x", x, n_threads)


entries = {
    "forward": entry(_forward, "y x", sizes="n exact"),
    "backward": entry(_backward, "dx dy x", sizes="n exact"),
}
