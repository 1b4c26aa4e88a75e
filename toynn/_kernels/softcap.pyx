"""A soft cap: what is small stays as it is, and nothing exceeds the cap.

    y  = cap tanh(x / cap)
    dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)

n elements. float32, C-contiguous. Saved for backward: y. dx is overwritten. In place: y may be x,
dx may be dy. Gemma 2 bounds its logits so.
Source: Gemma Team 2024, arXiv:2408.00118, section 2.
"""

from toynn._kernels._common cimport at1, tanh_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void _block_forward(float* y, const float* x, Py_ssize_t n, float cap) noexcept nogil:
    cdef Py_ssize_t i
    cdef float slope = 0
    for i in range(n):
        y[i] = cap * tanh_(x[i] / cap, &slope)


cdef inline void _block_backward(
    float* dx, const float* dy, const float* y, Py_ssize_t n, float cap
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float t
    for i in range(n):
        t = y[i] / cap
        dx[i] = dy[i] * ((1 - t) * (1 + t))


cdef void _forward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t b, i, n = a.n[0]
    cdef float cap = a.f[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_forward(y + i, x + i, min(BLOCK, n - i), cap)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_forward_blocks, a, (n + BLOCK - 1) // BLOCK)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* y = <const float*>a.t[2]
    cdef Py_ssize_t b, i, n = a.n[0]
    cdef float cap = a.f[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_backward(dx + i, dy + i, y + i, min(BLOCK, n - i), cap)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_backward_blocks, a, (n + BLOCK - 1) // BLOCK)


def forward(float[::1] y, const float[::1] x, float cap, int n_threads=1):
    """Overwrite y (n,) from x (n,); cap is a number above 0."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("softcap.forward", f"x ({n},)", n_threads, y=(y, (n,)))
    a.t[0], a.t[1] = at1(y), at1(x)
    a.n[0] = n
    a.f[0] = cap
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[::1] dx, const float[::1] dy, const float[::1] y, float cap, int n_threads=1
):
    """Overwrite dx (n,) from dy and y (n,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = y.shape[0]
    check("softcap.backward", f"y ({n},)", n_threads, dx=(dx, (n,)), dy=(dy, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(dx), at1(dy), at1(y)
    a.n[0] = n
    a.f[0] = cap
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x", sizes="n", options="cap"),
    "backward": entry(_backward, "dx dy y", sizes="n", options="cap"),
}
