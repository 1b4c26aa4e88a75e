"""A soft cap: what is small stays as it is, and nothing exceeds the cap.

    y  = cap tanh(x / cap)
    dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)

n elements. float32, C-contiguous. Saved for backward: y. dx is overwritten. In place: y may be x,
dx may be dy. Gemma 2 bounds its logits so.
Source: Gemma Team 2024, arXiv:2408.00118, section 2.
"""

from toynn._kernels._common cimport tanh_
from toynn._kernels._entry cimport entry
from toynn._kernels._pointwise cimport parallel_elements, unary_backward, unary_forward
from toynn._kernels.abi cimport KernelArgs


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i
    cdef float cap = a.f[0]
    cdef float slope = 0
    for i in range(first, last):
        y[i] = cap * tanh_(x[i] / cap, &slope)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* y = <const float*>a.t[2]
    cdef Py_ssize_t i
    cdef float cap = a.f[0]
    cdef float t
    for i in range(first, last):
        t = y[i] / cap
        dx[i] = dy[i] * ((1 - t) * (1 + t))


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


def forward(float[::1] y, const float[::1] x, float cap, int n_threads=1):
    """Overwrite y (n,) from x (n,); cap is a number above 0."""
    cdef KernelArgs a
    a.f[0] = cap
    unary_forward("softcap.forward", _forward, &a, y, x, n_threads)


def backward(
    float[::1] dx, const float[::1] dy, const float[::1] y, float cap, int n_threads=1
):
    """Overwrite dx (n,) from dy and y (n,)."""
    cdef KernelArgs a
    a.f[0] = cap
    unary_backward("softcap.backward", _backward, &a, dx, dy, "y", y, n_threads)


entries = {
    "forward": entry(_forward, "y x", sizes="n", options="cap"),
    "backward": entry(_backward, "dx dy y", sizes="n", options="cap"),
}
