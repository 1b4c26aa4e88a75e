"""Sigmoid: a score between 0 and 1, each by itself; a router's, where it is not a softmax.

    y  = s                      s = 1 / (1 + e^-x)
    dx = dy s (1 - s)

n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten. Saved for
backward: x, of which the slope has no cancellation; of y near 1 it had.
Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""

from toynn._kernels._common cimport at1, sigmoid_, sigmoid_slope_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void _block_forward(float* y, const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = sigmoid_(x[i])


cdef inline void _block_backward(
    float* dx, const float* dy, const float* x, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float slope = 0
    for i in range(n):
        sigmoid_slope_(x[i], &slope)
        dx[i] = dy[i] * slope


cdef void _forward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_forward(y + i, x + i, min(BLOCK, n - i))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_forward_blocks, a, (n + BLOCK - 1) // BLOCK)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_backward(dx + i, dy + i, x + i, min(BLOCK, n - i))


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_backward_blocks, a, (n + BLOCK - 1) // BLOCK)


def forward(float[::1] y, const float[::1] x, int n_threads=1):
    """Overwrite y (n,) from x (n,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("sigmoid.forward", f"x ({n},)", n_threads, y=(y, (n,)))
    a.t[0], a.t[1] = at1(y), at1(x)
    a.n[0] = n
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(float[::1] dx, const float[::1] dy, const float[::1] x, int n_threads=1):
    """Overwrite dx (n,) from dy (n,) and x (n,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("sigmoid.backward", f"x ({n},)", n_threads, dx=(dx, (n,)), dy=(dy, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(dx), at1(dy), at1(x)
    a.n[0] = n
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x", sizes="n"),
    "backward": entry(_backward, "dx dy x", sizes="n"),
}
