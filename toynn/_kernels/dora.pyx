"""DoRA: each output of W + s B A has a magnitude of its own, apart from its direction.

    norms     r[c]   = 1 / ||W[c] + s (BA)[c]||
                     = 1 / sqrt(squares[c] + 2 s sum_k b[c,k] p[k,c] + s^2 b[c] g b[c]^T)
    forward   y[n,c] = x[n,c] m[c] r[c] + bias[c]

    backward  dx[n,c] = dy[n,c] m[c] r[c]
              dm[c]   = sum_n dy[n,c] x[n,c] r[c]

squares (C,) = ||W[c]||^2, of a matrix W (C,K) that stays as it is; b (C,R) is B; p (R,C) = A W^T;
g (R,R) = A A^T: so W + s B A never exists. x (N,C) = (W + s B A) applied to N rows; m (C,) the
magnitudes; bias may be missing. r is a constant of the backward pass, as in the paper, section 4.3:
norms has none. A norm of 0 has r = 0. float32, norms inside in double; outputs never alias inputs.
dx is overwritten; dm is overwritten, or added to if accumulate is set.
Source: Liu et al. 2024, DoRA, arXiv:2402.09353, equations 5 and 11.
"""
from libc.math cimport sqrt

from toynn._kernels._columns cimport COLS, begin_sums, parallel_columns
from toynn._kernels._common cimport at1, at2
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline float _inverse_norm(
    float square, const float* p, const float* g, const float* b, Py_ssize_t C, Py_ssize_t R,
    double s,
) noexcept nogil:
    """r of the channel at which p (of a row C long) and b already point."""
    cdef Py_ssize_t k, j
    cdef double cross = 0, own = 0, part
    for k in range(R):
        cross += <double>b[k] * p[k * C]
        part = 0
        for j in range(R):
            part += <double>g[k * R + j] * b[j]
        own += b[k] * part
    cross = square + s * (2 * cross + s * own)
    return 0 if cross <= 0 else <float>(1 / sqrt(cross))


cdef inline void _row_forward(
    float* y, const float* x, const float* m, const float* r, const float* bias, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    if bias == NULL:
        for c in range(C):
            y[c] = x[c] * (m[c] * r[c])
    else:
        for c in range(C):
            y[c] = x[c] * (m[c] * r[c]) + bias[c]


cdef inline void _columns_dm(
    float* dm, const float* dy, const float* x, const float* r,
    Py_ssize_t N, Py_ssize_t C, Py_ssize_t width, bint accumulate,
) noexcept nogil:
    """dm[:width] for the columns at which dm, dy, x and r already point."""
    cdef float acc[COLS]
    cdef Py_ssize_t n, c
    begin_sums(acc, NULL, width, False)
    for n in range(N):
        for c in range(width):
            acc[c] += dy[n * C + c] * x[n * C + c]
    for c in range(width):
        dm[c] = dm[c] + acc[c] * r[c] if accumulate else acc[c] * r[c]


cdef void _norms_channels(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* r = <float*>a.t[0]
    cdef const float* squares = <const float*>a.t[1]
    cdef const float* p = <const float*>a.t[2]
    cdef const float* g = <const float*>a.t[3]
    cdef const float* b = <const float*>a.t[4]
    cdef Py_ssize_t c, C = a.n[0], R = a.n[1]
    cdef float scale = a.f[0]
    for c in range(first, last):
        r[c] = _inverse_norm(squares[c], p + c, g, b + c * R, C, R, scale)


cdef void _norms(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t C = a.n[0]
    parallel_for(_norms_channels, a, C)


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const float* m = <const float*>a.t[2]
    cdef const float* r = <const float*>a.t[3]
    cdef const float* bias = <const float*>a.t[4]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_forward(y + n * C, x + n * C, m, r, bias, C)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    if C:
        parallel_for(_forward_rows, a, N)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* m = <const float*>a.t[4]
    cdef const float* r = <const float*>a.t[5]
    cdef Py_ssize_t n, C = a.n[1]
    for n in range(first, last):
        _row_forward(dx + n * C, dy + n * C, m, r, NULL, C)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dm = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* r = <const float*>a.t[5]
    cdef Py_ssize_t b, c, N = a.n[0], C = a.n[1]
    for b in range(first, last):
        c = b * COLS
        _columns_dm(dm + c, dy + c, x + c, r + c, N, C, min(COLS, C - c), a.accumulate)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dm = <float*>a.t[1]
    cdef Py_ssize_t N = a.n[0], C = a.n[1]
    if C:
        parallel_for(_backward_rows, a, N)
    if dm != NULL:
        parallel_columns(_backward_blocks, a, C)


def norms(
    float[::1] r, const float[::1] squares, const float[:, ::1] p, const float[:, ::1] g,
    const float[:, ::1] b, float scale, int n_threads=1,
):
    """Overwrite r (C,) from squares (C,), p (R,C), g (R,R) and b (C,R)."""
    cdef KernelArgs a
    cdef Py_ssize_t C = b.shape[0], R = b.shape[1]
    check(
        "dora.norms", f"b ({C}, {R})", n_threads, r=(r, (C,)), squares=(squares, (C,)),
        p=(p, (R, C)), g=(g, (R, R)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at1(r), at1(squares), at2(p), at2(g), at2(b)
    a.n[0], a.n[1] = C, R
    a.f[0] = scale
    a.n_threads = n_threads
    with nogil:
        _norms(&a)


def forward(
    float[:, ::1] y, const float[:, ::1] x, const float[::1] m, const float[::1] r,
    const float[::1] bias, int n_threads=1,
):
    """Overwrite y (N,C) from x (N,C), m (C,), r (C,) and bias (C,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "dora.forward", f"x ({N}, {C})", n_threads, y=(y, (N, C)), m=(m, (C,)), r=(r, (C,)),
        bias=(bias, (C,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(y), at2(x), at1(m), at1(r), at1(bias)
    a.n[0], a.n[1] = N, C
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[::1] dm, const float[:, ::1] dy, const float[:, ::1] x,
    const float[::1] m, const float[::1] r, bint accumulate=False, int n_threads=1,
):
    """Overwrite dx (N,C); overwrite dm (C,), or add to it when ``accumulate`` is set."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = x.shape[1]
    check(
        "dora.backward", f"x ({N}, {C})", n_threads, dx=(dx, (N, C)), dm=(dm, (C,)),
        dy=(dy, (N, C)), m=(m, (C,)), r=(r, (C,)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dx), at1(dm), at2(dy)
    a.t[3], a.t[4], a.t[5] = at2(x), at1(m), at1(r)
    a.n[0], a.n[1] = N, C
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "norms": entry(_norms, "r squares p g b", sizes="C R", options="scale"),
    "forward": entry(_forward, "y x m r bias?", sizes="N C"),
    "backward": entry(_backward, "dx dm? dy x m r", sizes="N C"),
}
