"""LayerNorm over the last axis.

    mean[n] = mean_c x[n,c]
    r[n]    = 1 / sqrt(mean_c (x[n,c] - mean[n])^2 + eps)
    h[n,c]  = (x[n,c] - mean[n]) r[n]
    y[n,c]  = h[n,c] w[c] + b[c]

    g[n,c]  = w[c] dy[n,c]
    dx[n,c] = r[n] (g[n,c] - mean_k g[n,k] - h[n,c] mean_k g[n,k] h[n,k])
    dw[c]   = sum_n dy[n,c] h[n,c]         db[c] = sum_n dy[n,c]

N rows (B*T flattened), C channels. float32, C-contiguous; outputs never alias inputs.
Saved for backward: mean (N,), r (N,). dx is overwritten; dw and db are overwritten, or added to if
accumulate is set. Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450, section 3.
"""
from libc.math cimport sqrtf

from toynn._kernels._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels._common cimport dot_, sum_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.layernorm cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline void _row_forward(
    float* y, float* mean, float* r, const float* x, const float* w, const float* b,
    Py_ssize_t C, float eps,
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float s, m = sum_(x, C) / max(C, 1)
    for c in range(C):
        y[c] = x[c] - m
    s = 1 / sqrtf(dot_(y, y, C) / max(C, 1) + eps)
    for c in range(C):
        y[c] = y[c] * s * w[c] + b[c]
    mean[0] = m
    r[0] = s


cdef inline void _row_backward(
    float* dx, const float* dy, const float* x, const float* w, float mean, float r, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float mean_g, mean_gh
    # sum(g x) - mean sum(g) would lose digits; x - mean does not. dx holds h w in the meantime.
    for c in range(C):
        dx[c] = (x[c] - mean) * r * w[c]
    mean_gh = dot_(dx, dy, C) / max(C, 1)
    mean_g = dot_(w, dy, C) / max(C, 1)
    for c in range(C):
        dx[c] = r * (w[c] * dy[c] - mean_g - (x[c] - mean) * r * mean_gh)


cdef inline void _columns_dw_db(
    float* dw, float* db, const float* dy, const float* x, const float* mean, const float* r,
    Py_ssize_t N, Py_ssize_t C, Py_ssize_t width, bint accumulate,
) noexcept nogil:
    """dw[:width] and db[:width] for the columns at which all four pointers already point."""
    cdef float acc_w[COLS]
    cdef float acc_b[COLS]
    cdef Py_ssize_t n, c
    begin_sums(acc_w, dw, width, accumulate)
    begin_sums(acc_b, db, width, accumulate)
    for n in range(N):
        for c in range(width):
            acc_w[c] += dy[n * C + c] * (x[n * C + c] - mean[n]) * r[n]
            acc_b[c] += dy[n * C + c]
    end_sums(dw, acc_w, width)
    end_sums(db, acc_b, width)


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.y + n * a.C, a.mean + n, a.r + n, a.x + n * a.C, a.w, a.b, a.C, a.eps)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_backward(a.dx + n * a.C, a.dy + n * a.C, a.x + n * a.C, a.w, a.mean[n], a.r[n], a.C)


cdef void _backward_blocks(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, c
    for b in range(first, last):
        c = b * COLS
        _columns_dw_db(
            NULL if a.dw == NULL else a.dw + c, NULL if a.db == NULL else a.db + c,
            a.dy + c, a.x + c, a.mean, a.r, a.N, a.C, min(COLS, a.C - c), a.accumulate,
        )


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N)
    if a.dw != NULL or a.db != NULL:
        parallel_columns(<part_fn>_backward_blocks, a, a.C)


forward = entry(<kernel_fn>_forward, "y[N C]; mean[N] r[N] <- x[N C] w[C] b[C] | eps=1e-5")
backward = entry(
    <kernel_fn>_backward, "dx[N C] dw[C]?+ db[C]?+ <- dy[N C] x[N C] w[C] mean[N] r[N]"
)
