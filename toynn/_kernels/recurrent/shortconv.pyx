"""A short convolution, alone or between two gates. LFM2 has it instead of most attention layers.

    u[t,c] = i[t,c] v[t,c]                              i, g, v: the thirds of row t of x (N,3C)
    z[t,c] = b[c] + sum_k w[c,L-1-k] u[t-k,c]           k = 0 .. L-1, while t-k is in the sequence
    y[t,c] = g[t,c] z[t,c]

    dg = dy z        dz = dy g        du[t,c] = sum_k w[c,L-1-k] dz[t+k,c]      di = du v, dv = du i
    dw[c,L-1-k] = sum_t dz[t,c] u[t-k,c]                db[c] = sum_t dz[t,c]

b may be missing, for 0. Without gates u = x (N,C) and y = z. P = 3 or 1 says how many parts of C
channels a row of x has. N = B T rows: B sequences of T; C channels, L taps each. A row sees up to L
rows of its sequence or example. first[i] is the row at which row i's example starts, counted over
all rows. float32, C-contiguous. dx is overwritten, dw and db overwritten or added to. Nothing is
saved: u and z are recomputed.
cached: the T rows follow past[b] earlier rows of each sequence. ring (B,R,C) holds the last rows of
u, position p in row p mod R. The T new rows of u are written to it. No gradient.
Source: Liquid AI 2025, arXiv:2511.23404, section 2; the convolution: Poli et al. 2023,
arXiv:2302.10866.
"""
from toynn._kernels.base._columns cimport COLS, begin_sums, end_sums
from toynn._kernels.args.shortconv cimport Backward, Cached, Forward
from toynn._kernels.base.entry cimport entry
from toynn._kernels.gemm._product cimport blocks_of

from toynn._kernels.base._check import example_starts, ring_has_room


cdef inline Py_ssize_t _taps(
    const int* first, Py_ssize_t row, Py_ssize_t T, Py_ssize_t L
) noexcept nogil:
    """How many rows the convolution of a row sees, with the row itself."""
    cdef Py_ssize_t start = first[row] if first != NULL else row // T * T
    return min(L, row - start + 1)


cdef inline void _convolve(
    float* z, const float* x, const float* w, const float* b, Py_ssize_t taps, Py_ssize_t C,
    Py_ssize_t L, Py_ssize_t P,
) noexcept nogil:
    """z (C,) of the row x; taps - 1 rows of its sequence are before it in memory."""
    cdef Py_ssize_t k, c
    cdef const float* r = x
    for c in range(C):
        z[c] = b[c] if b != NULL else 0
    for k in range(taps):
        r = x - k * P * C
        if P == 1:
            for c in range(C):
                z[c] += w[c * L + L - 1 - k] * r[c]
        else:
            for c in range(C):
                z[c] += w[c * L + L - 1 - k] * (r[c] * r[2 * C + c])


cdef inline void forward_row(Forward* a, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t C = a.C, c
    cdef float* y = a.y + at * C
    cdef const float* x = a.x + at * a.P * C
    _convolve(y, x, a.w, a.b, _taps(a.first, at, a.T, a.L), C, a.L, a.P)
    if a.P > 1:
        for c in range(C):
            y[c] *= x[C + c]


cdef inline void backward_row(Backward* a, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t T = a.T, C = a.C, L = a.L, P = a.P, k, c, m
    cdef float* d = a.dx + at * P * C
    cdef const float* r = a.x + at * P * C
    for c in range(C):
        d[c] = 0
    for k in range(min(L, a.B * T - at)):
        m = at + k
        if _taps(a.first, m, T, L) <= k:
            break  # another sequence
        if P == 1:
            for c in range(C):
                d[c] += a.w[c * L + L - 1 - k] * a.dy[m * C + c]
        else:
            for c in range(C):
                d[c] += a.w[c * L + L - 1 - k] * (a.dy[m * C + c] * a.x[m * P * C + C + c])
    if P == 1:
        return
    _convolve(d + C, r, a.w, a.b, _taps(a.first, at, T, L), C, L, P)
    for c in range(C):
        d[C + c] *= a.dy[at * C + c]
        d[2 * C + c] = d[c] * r[c]
        d[c] *= r[2 * C + c]


cdef inline void backward_columns(Backward* a, Py_ssize_t at, Py_ssize_t width) noexcept nogil:
    """Compute dw and db of a block of channels."""
    cdef Py_ssize_t C = a.C, L = a.L, P = a.P, N = a.B * a.T, k, n, c
    cdef const float* r
    cdef const float* past
    cdef float[COLS] acc
    for k in range(L if a.dw != NULL else 0):
        for c in range(width):
            acc[c] = a.dw[(at + c) * L + L - 1 - k] if a.accumulate else 0
        for n in range(N):
            if _taps(a.first, n, a.T, L) <= k:
                continue
            r = a.x + n * P * C + at
            past = r - k * P * C
            if P == 1:
                for c in range(width):
                    acc[c] += a.dy[n * C + at + c] * past[c]
            else:
                for c in range(width):
                    acc[c] += a.dy[n * C + at + c] * r[C + c] * (past[c] * past[2 * C + c])
        for c in range(width):
            a.dw[(at + c) * L + L - 1 - k] = acc[c]
    if a.db != NULL:
        begin_sums(acc, a.db + at, width, a.accumulate)
        for n in range(N):
            for c in range(width):
                acc[c] += a.dy[n * C + at + c] * (1 if P == 1 else a.x[(n * P + 1) * C + at + c])
        end_sums(a.db + at, acc, width)


cdef inline void cached_block(Cached* a, Py_ssize_t at) noexcept nogil:
    """Compute a block of channels of a sequence."""
    cdef Py_ssize_t T = a.T, C = a.C, L = a.L, P = a.P, R = a.R, blocks = blocks_of(a.C, COLS)
    cdef Py_ssize_t b = at // blocks, c0 = at % blocks * COLS, c1 = min(c0 + COLS, C), t, p, k, c
    cdef const float* r
    cdef float* u
    for t in range(T):
        p = a.past[b] + t
        r = a.x + (b * T + t) * P * C
        u = a.ring + (b * R + p % R) * C
        for c in range(c0, c1):
            u[c] = r[c] if P == 1 else r[c] * r[2 * C + c]
            a.y[(b * T + t) * C + c] = a.w[c * L + L - 1] * u[c]
            if a.b != NULL:
                a.y[(b * T + t) * C + c] += a.b[c]
        for k in range(1, min(L, p + 1)):
            u = a.ring + (b * R + (p - k) % R) * C
            for c in range(c0, c1):
                a.y[(b * T + t) * C + c] += a.w[c * L + L - 1 - k] * u[c]
        if P == 1:
            continue
        for c in range(c0, c1):
            a.y[(b * T + t) * C + c] *= r[C + c]


forward = entry(
    "rows B*T: y[B*T C] <- x[B*T P*C] w[C L] b[C]? i32 first[B*T]? | B=1", example_starts
)
backward = entry(
    "rows B*T, columns C: dx[B*T P*C] dw[C L]?+ db[C]?+ "
    "<- dy[B*T C] x[B*T P*C] w[C L] b[C]? i32 first[B*T]? | B=1",
    example_starts,
)
cached = entry(
    "blocks B*blocks_of(C,COLS): y[B*T C] ring[B R C]! <- x[B*T P*C] w[C L] b[C]? i32 past[B]",
    ring_has_room,
)
