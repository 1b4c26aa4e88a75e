"""Softmax over the last axis.

    y[n,c]  = e^(x[n,c] - max_k x[n,k]) / sum_k e^(x[n,k] - max_j x[n,j])
    dx[n,c] = y[n,c] (dy[n,c] - sum_k dy[n,k] y[n,k])

N rows, C channels. float32, C-contiguous; sums in 16 partial sums. dx is overwritten.
In place: y may be x, dx may be dy. -infinity gives 0; a row of nothing else, or with a NaN or
+infinity, gives NaN. The maximum only keeps e^x finite: it cancels from the result.
"""

from toynn._kernels._common cimport at2, dot_, exp_, max_, sum_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline void _row_forward(float* y, const float* x, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    cdef float scale, most = max_(x, C)
    for c in range(C):
        y[c] = exp_(x[c] - most)
    scale = <float>1.0 / sum_(y, C)
    for c in range(C):
        y[c] *= scale


cdef inline void _row_backward(
    float* dx, const float* dy, const float* y, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float total = dot_(dy, y, C)
    for c in range(C):
        dx[c] = y[c] * (dy[c] - total)


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_forward(y + n * C, x + n * C, C)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    parallel_for(_forward_rows, a, N if C else 0)  # rows of nothing take no time


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* y = <const float*>a.t[2]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_backward(dx + n * C, dy + n * C, y + n * C, C)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    parallel_for(_backward_rows, a, N if C else 0)  # rows of nothing take no time


def forward(float[:, ::1] y, const float[:, ::1] x, int n_threads=1):
    """Overwrite y (N,C) from x (N,C)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check("softmax.forward", f"x ({N}, {C})", n_threads, y=(y, (N, C)))
    a.t[0], a.t[1] = at2(y), at2(x)
    a.n[0], a.n[1] = N, C
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, const float[:, ::1] dy, const float[:, ::1] y, int n_threads=1
):
    """Overwrite dx (N,C) from dy (N,C) and the forward's result y (N,C)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = y.shape[0], C = y.shape[1]
    check("softmax.backward", f"y ({N}, {C})", n_threads, dx=(dx, (N, C)), dy=(dy, (N, C)))
    a.t[0], a.t[1], a.t[2] = at2(dx), at2(dy), at2(y)
    a.n[0], a.n[1] = N, C
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x", sizes="N C"),
    "backward": entry(_backward, "dx dy y", sizes="N C"),
}
