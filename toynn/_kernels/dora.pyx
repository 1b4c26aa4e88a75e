"""DoRA: each output of W + s B A has its own magnitude, separate from its direction.

    norms     r[c]   = 1 / ||W[c] + s (BA)[c]||
                     = 1 / sqrt(squares[c] + 2 s sum_k b[c,k] p[k,c] + s^2 b[c] g b[c]^T)
    forward   y[n,c] = x[n,c] m[c] r[c] + bias[c]

    backward  dx[n,c] = dy[n,c] m[c] r[c]
              dm[c]   = sum_n dy[n,c] x[n,c] r[c]

W (C,K) is the frozen matrix. squares (C,) has ||W[c]||^2; b (C,R) is B; p (R,C) is A W^T; g (R,R)
is A A^T. So W + s B A is never computed. x (N,C) is (W + s B A) applied to N rows; m (C,) are the
magnitudes; bias may be missing. Backward treats r as a constant (section 4.3 of the paper), so
norms has no gradient. A norm of 0 gives r = 0. float32, norms computed in double; outputs never
alias inputs. dx is overwritten; dm is overwritten, or added to if accumulate is set.
Source: Liu et al. 2024, DoRA, arXiv:2402.09353, equations 5 and 11.
"""
from libc.math cimport sqrt

from toynn._kernels._columns cimport COLS, begin_sums, parallel_columns
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.dora cimport Backward, Forward, Norms
from toynn._kernels.entry cimport entry


cdef inline float _inverse_norm(
    float square, const float* p, const float* g, const float* b, Py_ssize_t C, Py_ssize_t R,
    double s,
) noexcept nogil:
    """r of one channel, at which p (with rows of C) and b already point."""
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


cdef void _norms_channels(Norms* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(first, last):
        a.r[c] = _inverse_norm(a.squares[c], a.p + c, a.g, a.b + c * a.R, a.C, a.R, a.scale)


cdef void _norms(Norms* a) noexcept nogil:
    parallel_for(<part_fn>_norms_channels, a, a.C)


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.y + n * a.C, a.x + n * a.C, a.m, a.r, a.bias, a.C)


cdef void _forward(Forward* a) noexcept nogil:
    if a.C:
        parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.dx + n * a.C, a.dy + n * a.C, a.m, a.r, NULL, a.C)


cdef void _backward_blocks(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, c
    for b in range(first, last):
        c = b * COLS
        _columns_dm(
            a.dm + c, a.dy + c, a.x + c, a.r + c, a.N, a.C, min(COLS, a.C - c), a.accumulate
        )


cdef void _backward(Backward* a) noexcept nogil:
    if a.C:
        parallel_for(<part_fn>_backward_rows, a, a.N)
    if a.dm != NULL:
        parallel_columns(<part_fn>_backward_blocks, a, a.C)


norms = entry(<kernel_fn>_norms, "r[C] <- squares[C] p[R C] g[R R] b[C R] | float scale")
forward = entry(<kernel_fn>_forward, "y[N C] <- x[N C] m[C] r[C] bias[C]?")
backward = entry(<kernel_fn>_backward, "dx[N C] dm[C]?+ <- dy[N C] x[N C] m[C] r[C]")
