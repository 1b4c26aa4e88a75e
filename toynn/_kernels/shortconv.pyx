"""A short convolution, alone or between two gates: LFM2 has that in place of most attention.

    u[t,c] = b[t,c] v[t,c]                              b, g, v: the thirds of row t of x (N,3C)
    z[t,c] = sum_k w[c,L-1-k] u[t-k,c]                  k = 0 .. L-1, as far as the sequence begins
    y[t,c] = g[t,c] z[t,c]

    dg = dy z        dz = dy g        du[t,c] = sum_k w[c,L-1-k] dz[t+k,c]      db = du v, dv = du b
    dw[c,L-1-k] = sum_t dz[t,c] u[t-k,c]

Without gates u = x (N,C) and y = z. P = 3 or 1 says how many parts of C channels a row of x has.
N = B T rows: B sequences of T; C channels, L taps each. A row sees L rows of its sequence, or of
its segment: first[i] is the first row of row i's, counted over all rows. float32, C-contiguous.
dx is overwritten, dw overwritten or added to; nothing is saved: u and z are computed again.
cached: the T rows come behind past[b] others of each sequence, whose last u are in a ring (B,R,C),
that of position p in row p mod R; those of the T rows are added. No gradient.
Source: Liquid AI 2025, arXiv:2511.23404, section 2; the convolution: Poli et al. 2023,
arXiv:2302.10866.
"""
from toynn._kernels._columns cimport COLS, parallel_columns
from toynn._kernels._common cimport at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

import numpy as np

from toynn._kernels._check import check
from toynn.checks import segments_within


cdef inline Py_ssize_t _taps(
    const int* first, Py_ssize_t row, Py_ssize_t T, Py_ssize_t L
) noexcept nogil:
    """How many rows, itself and before, the convolution of a row sees."""
    cdef Py_ssize_t start = first[row] if first != NULL else row // T * T
    return min(L, row - start + 1)


cdef inline void _convolve(
    float* z, const float* x, const float* w, Py_ssize_t taps, Py_ssize_t C, Py_ssize_t L,
    Py_ssize_t P,
) noexcept nogil:
    """z (C,) of the row x, behind which taps - 1 rows of its sequence lie."""
    cdef Py_ssize_t k, c
    cdef const float* r = x
    for c in range(C):
        z[c] = 0
    for k in range(taps):
        r = x - k * P * C
        if P == 1:
            for c in range(C):
                z[c] += w[c * L + L - 1 - k] * r[c]
        else:
            for c in range(C):
                z[c] += w[c * L + L - 1 - k] * (r[c] * r[2 * C + c])


cdef void _forward_rows(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const float* w = <const float*>a.t[2]
    cdef const int* first = <const int*>a.t[3]
    cdef Py_ssize_t n, c, T = a.n[1], C = a.n[2], L = a.n[3], P = a.n[4]
    for n in range(begin, end):
        _convolve(y + n * C, x + n * P * C, w, _taps(first, n, T, L), C, L, P)
        if P == 1:
            continue
        for c in range(C):
            y[n * C + c] *= x[n * P * C + C + c]


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], T = a.n[1]
    parallel_for(_forward_rows, a, B * T)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* w = <const float*>a.t[4]
    cdef const int* first = <const int*>a.t[5]
    cdef Py_ssize_t n, k, c, m, B = a.n[0], T = a.n[1], C = a.n[2], L = a.n[3], P = a.n[4]
    cdef float* d
    cdef const float* r
    for n in range(begin, end):
        d, r = dx + n * P * C, x + n * P * C
        for c in range(C):
            d[c] = 0
        for k in range(min(L, B * T - n)):
            m = n + k
            if _taps(first, m, T, L) <= k:
                break  # another sequence
            if P == 1:
                for c in range(C):
                    d[c] += w[c * L + L - 1 - k] * dy[m * C + c]
            else:
                for c in range(C):
                    d[c] += w[c * L + L - 1 - k] * (dy[m * C + c] * x[m * P * C + C + c])
        if P == 1:
            continue
        _convolve(d + C, r, w, _taps(first, n, T, L), C, L, P)
        for c in range(C):
            d[C + c] *= dy[n * C + c]
            d[2 * C + c] = d[c] * r[c]
            d[c] *= r[2 * C + c]


cdef void _backward_columns(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """dw of blocks of channels."""
    cdef float* dw = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const int* first = <const int*>a.t[5]
    cdef Py_ssize_t B = a.n[0], T = a.n[1], C = a.n[2], L = a.n[3], P = a.n[4]
    cdef Py_ssize_t block, k, n, c, c0, width
    cdef const float* r
    cdef const float* past
    cdef float acc[COLS]
    for block in range(begin, end):
        c0 = block * COLS
        width = min(COLS, C - c0)
        for k in range(L):
            for c in range(width):
                acc[c] = dw[(c0 + c) * L + L - 1 - k] if a.accumulate else 0
            for n in range(B * T):
                if _taps(first, n, T, L) <= k:
                    continue
                r = x + n * P * C + c0
                past = r - k * P * C
                if P == 1:
                    for c in range(width):
                        acc[c] += dy[n * C + c0 + c] * past[c]
                else:
                    for c in range(width):
                        acc[c] += dy[n * C + c0 + c] * r[C + c] * (past[c] * past[2 * C + c])
            for c in range(width):
                dw[(c0 + c) * L + L - 1 - k] = acc[c]


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[1]
    cdef Py_ssize_t B = a.n[0], T = a.n[1], C = a.n[2]
    parallel_for(_backward_rows, a, B * T)
    if dw != NULL:
        parallel_columns(_backward_columns, a, C)


cdef void _cached_columns(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Blocks of channels of the sequences."""
    cdef float* y = <float*>a.t[0]
    cdef float* ring = <float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const float* w = <const float*>a.t[3]
    cdef const int* past = <const int*>a.t[4]
    cdef Py_ssize_t T = a.n[1], C = a.n[2], L = a.n[3], P = a.n[4], R = a.n[5]
    cdef Py_ssize_t blocks = (C + COLS - 1) // COLS, task, b, t, p, k, c, c0, c1
    cdef const float* r
    cdef float* u
    for task in range(begin, end):
        b = task // blocks
        c0 = task % blocks * COLS
        c1 = min(c0 + COLS, C)
        for t in range(T):
            p = past[b] + t
            r = x + (b * T + t) * P * C
            u = ring + (b * R + p % R) * C
            for c in range(c0, c1):
                u[c] = r[c] if P == 1 else r[c] * r[2 * C + c]
                y[(b * T + t) * C + c] = w[c * L + L - 1] * u[c]
            for k in range(1, min(L, p + 1)):
                u = ring + (b * R + (p - k) % R) * C
                for c in range(c0, c1):
                    y[(b * T + t) * C + c] += w[c * L + L - 1 - k] * u[c]
            if P == 1:
                continue
            for c in range(c0, c1):
                y[(b * T + t) * C + c] *= r[C + c]


cdef void _cached(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], C = a.n[2]
    parallel_for(_cached_columns, a, B * ((C + COLS - 1) // COLS))


cdef _describe(
    KernelArgs* a, str where, const float[:, ::1] w, Py_ssize_t rows, batch, parts, first
):
    """Fill in the sizes: rows are those of ``batch`` sequences, each of so many parts."""
    cdef Py_ssize_t B = batch, C = w.shape[0], L = w.shape[1], T = rows // max(B, 1)
    if B < 0 or B * T != rows or L < 1:
        raise ValueError(
            f"{where}: needs whole sequences and w (C, L) with L >= 1; got {rows} rows in {B}, "
            f"w ({C}, {L})"
        )
    if first is not None:
        check(where, f"{rows} rows", 1, first=(first, (rows,)))
        segments_within(T)(f"{where}: first", np.asarray(first))
    a.n[0], a.n[1], a.n[2], a.n[3], a.n[4] = B, T, C, L, parts


def forward(
    float[:, ::1] y, const float[:, ::1] x, const float[:, ::1] w, const int[::1] first=None,
    Py_ssize_t batch=1, int n_threads=1,
):
    """Overwrite y (B*T,C) from x (B*T,3C), or (B*T,C), and w (C,L); batch is B, first (B*T,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = w.shape[0], L = w.shape[1]
    cdef Py_ssize_t P = 1 if x.shape[1] == C else 3
    check("shortconv.forward", f"w ({C}, {L})", n_threads, x=(x, (N, P * C)), y=(y, (N, C)))
    _describe(&a, "shortconv.forward", w, N, batch, P, first)
    a.t[0], a.t[1], a.t[2] = at2(y), at2(x), at2(w)
    a.t[3] = ids1(first) if first is not None else NULL
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[:, ::1] dw, const float[:, ::1] dy, const float[:, ::1] x,
    const float[:, ::1] w, const int[::1] first=None, Py_ssize_t batch=1, bint accumulate=False,
    int n_threads=1,
):
    """Overwrite dx, as x; overwrite dw (C,L), or add to it; the rest as in forward."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = w.shape[0], L = w.shape[1]
    cdef Py_ssize_t P = 1 if x.shape[1] == C else 3
    check(
        "shortconv.backward", f"w ({C}, {L})", n_threads, x=(x, (N, P * C)), dy=(dy, (N, C)),
        dx=(dx, (N, P * C)), dw=(dw, (C, L)),
    )
    _describe(&a, "shortconv.backward", w, N, batch, P, first)
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(dx), at2(dw), at2(dy), at2(x), at2(w)
    a.t[5] = ids1(first) if first is not None else NULL
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


def cached(
    float[:, ::1] y, float[:, :, ::1] ring, const float[:, ::1] x, const float[:, ::1] w,
    const int[::1] past, int n_threads=1,
):
    """Overwrite y (B*T,C), and rows of ring (B,R,C), from x as in forward, w (C,L), past (B,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], C = w.shape[0], L = w.shape[1], B = ring.shape[0], b
    cdef Py_ssize_t R = ring.shape[1], P = 1 if x.shape[1] == C else 3
    check(
        "shortconv.cached", f"w ({C}, {L})", n_threads, x=(x, (N, P * C)), y=(y, (N, C)),
        ring=(ring, (B, R, C)), past=(past, (B,)),
    )
    _describe(&a, "shortconv.cached", w, N, B, P, None)
    for b in range(B):
        if past[b] < 0 or a.n[1] + L - 1 > R:
            raise ValueError(
                f"shortconv.cached: {a.n[1]} rows and {L} taps need a ring of as many, and a past "
                f">= 0; got {R} and {past[b]}"
            )
    a.t[0], a.t[2], a.t[3], a.t[4] = at2(y), at2(x), at2(w), ids1(past)
    a.t[1] = <void*>&ring[0, 0, 0] if B * R * C else NULL
    a.n[5] = R
    a.n_threads = n_threads
    with nogil:
        _cached(&a)


entries = {
    "forward": entry(_forward, "y x w first?", sizes="B T C L P"),
    "backward": entry(_backward, "dx dw? dy x w first?", sizes="B T C L P"),
    "cached": entry(_cached, "y ring x w past", sizes="B T C L P R"),
}
