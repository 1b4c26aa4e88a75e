"""A short convolution, alone or between two gates. LFM2 has it instead of most attention layers.

    u[t,c] = i[t,c] v[t,c]                              i, g, v: the thirds of row t of x (N,3C)
    z[t,c] = b[c] + sum_k w[c,L-1-k] u[t-k,c]           k = 0 .. L-1, while t-k is in the sequence
    y[t,c] = g[t,c] z[t,c]

    dg = dy z        dz = dy g        du[t,c] = sum_k w[c,L-1-k] dz[t+k,c]      di = du v, dv = du i
    dw[c,L-1-k] = sum_t dz[t,c] u[t-k,c]                db[c] = sum_t dz[t,c]

b may be missing, for 0. Without gates u = x (N,C) and y = z. P = 3 or 1 says how many parts of C
channels a row of x has. N = B T rows: B sequences of T; C channels, L taps each. A row sees up to L
rows of its sequence or segment. first[i] is the first row of row i's segment, counted over all
rows. float32, C-contiguous. dx is overwritten, dw and db overwritten or added to. Nothing is saved:
u and z are recomputed.
cached: the T rows follow past[b] earlier rows of each sequence. ring (B,R,C) holds the last rows of
u, position p in row p mod R. The T new rows of u are written to it. No gradient.
Source: Liquid AI 2025, arXiv:2511.23404, section 2; the convolution: Poli et al. 2023,
arXiv:2302.10866.
"""
from toynn._kernels._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.shortconv cimport Backward, Cached, Forward
from toynn._kernels.entry cimport entry

from toynn._kernels._check import ring_has_room, segments


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


cdef void _forward_rows(Forward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t T = a.T, C = a.C, L = a.L, P = a.P
    cdef Py_ssize_t n, c
    for n in range(begin, end):
        _convolve(a.y + n * C, a.x + n * P * C, a.w, a.b, _taps(a.first, n, T, L), C, L, P)
        if P == 1:
            continue
        for c in range(C):
            a.y[n * C + c] *= a.x[n * P * C + C + c]


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.B * a.T)


cdef void _backward_rows(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t B = a.B, T = a.T, C = a.C, L = a.L, P = a.P
    cdef Py_ssize_t n, k, c, m
    cdef float* d
    cdef const float* r
    for n in range(begin, end):
        d, r = a.dx + n * P * C, a.x + n * P * C
        for c in range(C):
            d[c] = 0
        for k in range(min(L, B * T - n)):
            m = n + k
            if _taps(a.first, m, T, L) <= k:
                break  # another sequence
            if P == 1:
                for c in range(C):
                    d[c] += a.w[c * L + L - 1 - k] * a.dy[m * C + c]
            else:
                for c in range(C):
                    d[c] += a.w[c * L + L - 1 - k] * (a.dy[m * C + c] * a.x[m * P * C + C + c])
        if P == 1:
            continue
        _convolve(d + C, r, a.w, a.b, _taps(a.first, n, T, L), C, L, P)
        for c in range(C):
            d[C + c] *= a.dy[n * C + c]
            d[2 * C + c] = d[c] * r[c]
            d[c] *= r[2 * C + c]


cdef void _backward_columns(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute dw of blocks of channels."""
    cdef Py_ssize_t B = a.B, T = a.T, C = a.C, L = a.L, P = a.P
    cdef Py_ssize_t block, k, n, c, c0, width
    cdef const float* r
    cdef const float* past
    cdef float acc[COLS]
    for block in range(begin, end):
        c0 = block * COLS
        width = min(COLS, C - c0)
        for k in range(L):
            for c in range(width):
                acc[c] = a.dw[(c0 + c) * L + L - 1 - k] if a.accumulate else 0
            for n in range(B * T):
                if _taps(a.first, n, T, L) <= k:
                    continue
                r = a.x + n * P * C + c0
                past = r - k * P * C
                if P == 1:
                    for c in range(width):
                        acc[c] += a.dy[n * C + c0 + c] * past[c]
                else:
                    for c in range(width):
                        acc[c] += a.dy[n * C + c0 + c] * r[C + c] * (past[c] * past[2 * C + c])
            for c in range(width):
                a.dw[(c0 + c) * L + L - 1 - k] = acc[c]


cdef void _backward_bias(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute db of blocks of channels."""
    cdef Py_ssize_t C = a.C, P = a.P, block, n, c, c0, width
    cdef float acc[COLS]
    for block in range(begin, end):
        c0 = block * COLS
        width = min(COLS, C - c0)
        begin_sums(acc, a.db + c0, width, a.accumulate)
        for n in range(a.B * a.T):
            for c in range(width):
                acc[c] += a.dy[n * C + c0 + c] * (1 if P == 1 else a.x[(n * P + 1) * C + c0 + c])
        end_sums(a.db + c0, acc, width)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.B * a.T)
    if a.dw != NULL:
        parallel_columns(<part_fn>_backward_columns, a, a.C)
    if a.db != NULL:
        parallel_columns(<part_fn>_backward_bias, a, a.C)


cdef void _cached_columns(Cached* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute blocks of channels of the sequences."""
    cdef Py_ssize_t T = a.T, C = a.C, L = a.L, P = a.P, R = a.R
    cdef Py_ssize_t blocks = (C + COLS - 1) // COLS, task, b, t, p, k, c, c0, c1
    cdef const float* r
    cdef float* u
    for task in range(begin, end):
        b = task // blocks
        c0 = task % blocks * COLS
        c1 = min(c0 + COLS, C)
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


cdef void _cached(Cached* a) noexcept nogil:
    parallel_for(<part_fn>_cached_columns, a, a.B * ((a.C + COLS - 1) // COLS))


forward = entry(
    <kernel_fn>_forward,
    "y[B*T C] <- x[B*T P*C] w[C L] b[C]? i32 first[B*T]? | B=1",
    NULL, segments,
)
backward = entry(
    <kernel_fn>_backward,
    "dx[B*T P*C] dw[C L]?+ db[C]?+ <- dy[B*T C] x[B*T P*C] w[C L] b[C]? i32 first[B*T]? | B=1",
    NULL, segments,
)
cached = entry(
    <kernel_fn>_cached,
    "y[B*T C] ring[B R C]! <- x[B*T P*C] w[C L] b[C]? i32 past[B]",
    NULL, ring_has_room,
)
