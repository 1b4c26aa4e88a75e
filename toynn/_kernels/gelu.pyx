"""GELU: x times the chance that a standard normal number is below x, exactly or by its tanh form.

exact:  y  = x P(x)                   P(x) = (1 + erf(x / sqrt 2)) / 2
        dx = dy (P(x) + x p(x))       p(x) = e^(-x^2 / 2) / sqrt(2 pi)

tanh:   y  = x s(u)                   s(u) = 1 / (1 + e^-u),  u = sqrt(8 / pi) (x + 0.044715 x^3)
        dx = dy (s + x s (1 - s) u')  u'   = sqrt(8 / pi) (1 + 0.134145 x^2)

The usual x (1 + tanh(u / 2)) / 2 is the tanh form too: (1 + tanh(u / 2)) / 2 = s(u).
n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten.
Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
"""

from toynn._kernels._common cimport at1
from toynn._kernels._entry cimport entry
from toynn._kernels._gelu cimport gelu_exact, gelu_tanh, slope_exact, slope_tanh
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void _block_forward(float* y, const float* x, Py_ssize_t n, bint exact) noexcept nogil:
    cdef Py_ssize_t i
    if exact:
        for i in range(n):
            y[i] = gelu_exact(x[i])
    else:
        for i in range(n):
            y[i] = gelu_tanh(x[i])


cdef inline void _block_backward(
    float* dx, const float* dy, const float* x, Py_ssize_t n, bint exact
) noexcept nogil:
    cdef Py_ssize_t i
    if exact:
        for i in range(n):
            dx[i] = dy[i] * slope_exact(x[i])
    else:
        for i in range(n):
            dx[i] = dy[i] * slope_tanh(x[i])


cdef void _forward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t b, i, n = a.n[0]
    cdef bint exact = a.n[1] != 0
    for b in range(first, last):
        i = b * BLOCK
        _block_forward(y + i, x + i, min(BLOCK, n - i), exact)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_forward_blocks, a, (n + BLOCK - 1) // BLOCK)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t b, i, n = a.n[0]
    cdef bint exact = a.n[1] != 0
    for b in range(first, last):
        i = b * BLOCK
        _block_backward(dx + i, dy + i, x + i, min(BLOCK, n - i), exact)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_backward_blocks, a, (n + BLOCK - 1) // BLOCK)


def forward(float[::1] y, const float[::1] x, bint exact=False, int n_threads=1):
    """Overwrite y (n,) from x (n,): the tanh form, or the exact one."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("gelu.forward", f"x ({n},)", n_threads, y=(y, (n,)))
    a.t[0], a.t[1] = at1(y), at1(x)
    a.n[0], a.n[1] = n, exact
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[::1] dx, const float[::1] dy, const float[::1] x, bint exact=False, int n_threads=1
):
    """Overwrite dx (n,) from dy (n,) and x (n,), as ``forward`` was called."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("gelu.backward", f"x ({n},)", n_threads, dx=(dx, (n,)), dy=(dy, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(dx), at1(dy), at1(x)
    a.n[0], a.n[1] = n, exact
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x", sizes="n exact"),
    "backward": entry(_backward, "dx dy x", sizes="n exact"),
}
