"""RMSNorm over the last axis.

    r[n]    = 1 / sqrt(mean_c x[n,c]^2 + eps)
    y[n,c]  = x[n,c] r[n] w[c]

    dx[n,c] = r[n] (w[c] dy[n,c] - x[n,c] r[n]^2 mean_k w[k] dy[n,k] x[n,k])
    dw[c]   = sum_n dy[n,c] x[n,c] r[n]

N rows (B*T flattened), C channels. float32, C-contiguous; outputs never alias inputs.
Saved for backward: r (N,). dx is overwritten; dw is overwritten, or added to if accumulate is set.
Source: Zhang & Sennrich 2019, arXiv:1910.07467.
"""
from libc.math cimport sqrtf

from toynn._kernels._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels._common cimport at1, at2, dot_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline void _row_forward(
    float* y, float* r, const float* x, const float* w, Py_ssize_t C, float eps
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float s = 1 / sqrtf(dot_(x, x, C) / C + eps)
    for c in range(C):
        y[c] = x[c] * s * w[c]
    r[0] = s


cdef inline void _row_backward(
    float* dx, const float* dy, const float* x, const float* w, float r, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float k, total = 0
    for c in range(C):
        dx[c] = w[c] * dy[c]
    total = dot_(dx, x, C)
    k = total / C * r * r
    for c in range(C):
        dx[c] = r * (dx[c] - x[c] * k)


cdef inline void _columns_dw(
    float* dw, const float* dy, const float* x, const float* r,
    Py_ssize_t N, Py_ssize_t C, Py_ssize_t width, bint accumulate,
) noexcept nogil:
    """dw[:width] for the columns at which dw, dy and x already point."""
    cdef float acc[COLS]
    cdef Py_ssize_t n, c
    begin_sums(acc, dw, width, accumulate)
    for n in range(N):
        for c in range(width):
            acc[c] += dy[n * C + c] * x[n * C + c] * r[n]
    end_sums(dw, acc, width)


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef float* r = <float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const float* w = <const float*>a.t[3]
    cdef Py_ssize_t n, C = a.n[1]
    cdef float eps = a.f[0]
    for n in range(first, last):
        _row_forward(y + n * C, r + n, x + n * C, w, C, eps)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_forward_rows, a, N)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* w = <const float*>a.t[4]
    cdef const float* r = <const float*>a.t[5]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_backward(dx + n * C, dy + n * C, x + n * C, w, r[n], C)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dw = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* r = <const float*>a.t[5]
    cdef Py_ssize_t b, c, N = a.n[0], C = a.n[1]
    for b in range(first, last):
        c = b * COLS
        _columns_dw(dw + c, dy + c, x + c, r, N, C, min(COLS, C - c), a.accumulate)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[1]
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    parallel_for(_backward_rows, a, N)
    if dw != NULL:
        parallel_columns(_backward_blocks, a, C)


def forward(
    float[:, ::1] y, float[::1] r, const float[:, ::1] x, const float[::1] w,
    float eps=1e-5, int n_threads=1,
):
    """Overwrite y (N,C) and r (N,) from x (N,C) and w (C,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "rmsnorm.forward", f"x ({N}, {C})", n_threads, y=(y, (N, C)), r=(r, (N,)), w=(w, (C,))
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(y), at1(r), at2(x), at1(w)
    a.n[0], a.n[1] = N, C
    a.f[0] = eps
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[::1] dw, const float[:, ::1] dy, const float[:, ::1] x,
    const float[::1] w, const float[::1] r, bint accumulate=False, int n_threads=1,
):
    """Overwrite dx (N,C); overwrite dw (C,), or add to it when ``accumulate`` is set."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "rmsnorm.backward", f"x ({N}, {C})", n_threads, dx=(dx, (N, C)), dw=(dw, (C,)),
        dy=(dy, (N, C)), w=(w, (C,)), r=(r, (N,)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dx), at1(dw), at2(dy)
    a.t[3], a.t[4], a.t[5] = at2(x), at1(w), at1(r)
    a.n[0], a.n[1] = N, C
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y r x w", sizes="N C", options="eps"),
    "backward": entry(_backward, "dx dw? dy x w r", sizes="N C"),
}
