"""SiLU (swish): x times its sigmoid.

    y  = x s                    s = 1 / (1 + e^-x)
    dx = dy (s + x s (1 - s))

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, section 2.
"""

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._entry cimport entry
from toynn._kernels._pointwise cimport parallel_elements, unary_backward, unary_forward
from toynn._kernels.abi cimport KernelArgs


cdef inline float _slope(float x) noexcept nogil:
    cdef float ds = 0
    cdef float s = sigmoid_slope_(x, &ds)
    return s + x * ds


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i
    for i in range(first, last):
        y[i] = x[i] * sigmoid_(x[i])


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t i
    for i in range(first, last):
        dx[i] = dy[i] * _slope(x[i])


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


def forward(float[::1] y, const float[::1] x, int n_threads=1):
    """Overwrite y (n,) from x (n,)."""
    cdef KernelArgs a
    unary_forward("silu.forward", _forward, &a, y, x, n_threads)


def backward(float[::1] dx, const float[::1] dy, const float[::1] x, int n_threads=1):
    """Overwrite dx (n,) from dy (n,) and x (n,)."""
    cdef KernelArgs a
    unary_backward("silu.backward", _backward, &a, dx, dy, "x", x, n_threads)


entries = {
    "forward": entry(_forward, "y x", sizes="n"),
    "backward": entry(_backward, "dx dy x", sizes="n"),
}
