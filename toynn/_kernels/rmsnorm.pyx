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
from toynn._kernels._common cimport dot_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.rmsnorm cimport Backward, Forward
from toynn._kernels.entry cimport entry


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


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.y + n * a.C, a.r + n, a.x + n * a.C, a.w, a.C, a.eps)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_backward(a.dx + n * a.C, a.dy + n * a.C, a.x + n * a.C, a.w, a.r[n], a.C)


cdef void _backward_blocks(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, c
    for b in range(first, last):
        c = b * COLS
        _columns_dw(
            a.dw + c, a.dy + c, a.x + c, a.r, a.N, a.C, min(COLS, a.C - c), a.accumulate
        )


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N)
    if a.dw != NULL:
        parallel_columns(<part_fn>_backward_blocks, a, a.C)


forward = entry(<kernel_fn>_forward, "y[N C]; r[N] <- x[N C] w[C] | eps=1e-5")
backward = entry(<kernel_fn>_backward, "dx[N C] dw[C]?+ <- dy[N C] x[N C] w[C] r[N]")
