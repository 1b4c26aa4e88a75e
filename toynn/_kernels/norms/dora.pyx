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

from toynn._kernels.base._columns cimport COLS, begin_sums
from toynn._kernels.base.entry cimport entry


cdef inline void norms_channel(
    float* r, float squares, const float* p, const float* g, const float* b, Py_ssize_t at,
    Py_ssize_t C, Py_ssize_t R, float scale,
) noexcept nogil:
    cdef Py_ssize_t k, j
    cdef double s = scale, cross = 0, own = 0, part
    for k in range(R):
        cross += <double>b[k] * p[k * C + at]
        part = 0
        for j in range(R):
            part += <double>g[k * R + j] * b[j]
        own += b[k] * part
    cross = squares + s * (2 * cross + s * own)
    r[0] = 0 if cross <= 0 else <float>(1 / sqrt(cross))


cdef inline void forward_row(
    float* y, const float* x, const float* m, const float* r, const float* bias, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t c
    if bias == NULL:
        for c in range(C):
            y[c] = x[c] * (m[c] * r[c])
    else:
        for c in range(C):
            y[c] = x[c] * (m[c] * r[c]) + bias[c]


cdef inline void backward_row(
    float* dx, const float* dy, const float* m, const float* r, Py_ssize_t C
) noexcept nogil:
    forward_row(dx, dy, m, r, NULL, C)


cdef inline void backward_columns(
    float* dm, const float* dy, const float* x, const float* r,
    Py_ssize_t N, Py_ssize_t C, Py_ssize_t width, bint accumulate,
) noexcept nogil:
    cdef float[COLS] acc
    cdef Py_ssize_t n, c
    begin_sums(acc, NULL, width, False)
    for n in range(N):
        for c in range(width):
            acc[c] += dy[n * C + c] * x[n * C + c]
    for c in range(width):
        dm[c] = dm[c] + acc[c] * r[c] if accumulate else acc[c] * r[c]


norms = entry("channels C: r[C] <- squares[C] p[R C] g[R R] b[C R] | float scale")
forward = entry("rows N: y[N C] <- x[N C] m[C] r[C] bias[C]?")
backward = entry("rows N, columns C: dx[N C] dm[C]?+ <- dy[N C] x[N C] m[C] r[C]")
