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
from toynn._kernels._common cimport at1, at2, dot_, sum_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


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
    # x - mean keeps digits that sum(g x) - mean sum(g) would lose, so dx holds it for a while.
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


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef float* mean = <float*>a.t[1]
    cdef float* r = <float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* w = <const float*>a.t[4]
    cdef const float* b = <const float*>a.t[5]
    cdef Py_ssize_t n, C = a.n[1]
    cdef float eps = a.f[0]
    for n in range(first, last):
        _row_forward(y + n * C, mean + n, r + n, x + n * C, w, b, C, eps)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_forward_rows, a, N)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* w = <const float*>a.t[5]
    cdef const float* mean = <const float*>a.t[6]
    cdef const float* r = <const float*>a.t[7]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_backward(dx + n * C, dy + n * C, x + n * C, w, mean[n], r[n], C)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dw = <float*>a.t[1]
    cdef float* db = <float*>a.t[2]
    cdef const float* dy = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* mean = <const float*>a.t[6]
    cdef const float* r = <const float*>a.t[7]
    cdef Py_ssize_t b, c, N = a.n[0], C = a.n[1]
    for b in range(first, last):
        c = b * COLS
        _columns_dw_db(
            NULL if dw == NULL else dw + c, NULL if db == NULL else db + c, dy + c, x + c,
            mean, r, N, C, min(COLS, C - c), a.accumulate,
        )


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[1]
    cdef float* db = <float*>a.t[2]
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    parallel_for(_backward_rows, a, N)
    if dw != NULL or db != NULL:
        parallel_columns(_backward_blocks, a, C)


def forward(
    float[:, ::1] y, float[::1] mean, float[::1] r, const float[:, ::1] x, const float[::1] w,
    const float[::1] b, float eps=1e-5, int n_threads=1,
):
    """Overwrite y (N,C), mean (N,) and r (N,) from x (N,C), w (C,) and b (C,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "layernorm.forward", f"x ({N}, {C})", n_threads, y=(y, (N, C)), mean=(mean, (N,)),
        r=(r, (N,)), w=(w, (C,)), b=(b, (C,)),
    )
    a.t[0], a.t[1], a.t[2] = at2(y), at1(mean), at1(r)
    a.t[3], a.t[4], a.t[5] = at2(x), at1(w), at1(b)
    a.n[0], a.n[1] = N, C
    a.f[0] = eps
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[::1] dw, float[::1] db, const float[:, ::1] dy,
    const float[:, ::1] x, const float[::1] w, const float[::1] mean, const float[::1] r,
    bint accumulate=False, int n_threads=1,
):
    """Overwrite dx (N,C); overwrite dw and db (C,), or add to them when ``accumulate`` is set."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "layernorm.backward", f"x ({N}, {C})", n_threads, dx=(dx, (N, C)), dw=(dw, (C,)),
        db=(db, (C,)), dy=(dy, (N, C)), w=(w, (C,)), mean=(mean, (N,)), r=(r, (N,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dx), at1(dw), at1(db), at2(dy)
    a.t[4], a.t[5], a.t[6], a.t[7] = at2(x), at1(w), at1(mean), at1(r)
    a.n[0], a.n[1] = N, C
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y mean r x w b", sizes="N C", options="eps"),
    "backward": entry(_backward, "dx dw? db? dy x w mean r", sizes="N C"),
}
