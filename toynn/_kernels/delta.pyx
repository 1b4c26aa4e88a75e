"""The gated delta rule: a state that forgets, and unlearns what it had under a key.

    S_t = e^g[t] S_{t-1} + k (b (v - e^g[t] S_{t-1}^T k))^T        y[t] = S_t^T q

    q = q' / sqrt(q'.q' + eps) / sqrt(D)     k = k' / sqrt(k'.k' + eps)     b = 1 / (1 + e^-c[t])

for each of V heads of values, of E columns; S (D,E) is 0 where a sequence begins. A row of x is q'
of K heads of D, k' of as many, v of V heads of E; head h of V reads head h mod K. Backward, from
the last row to the first, with P = e^g S_{t-1}, m = P^T k, u = b (v - m), and R = dL/dS_t:

    R  += q dy^T       du = R^T k          dv = b du         dm = -b du       db = du . (v - m)
    dq  = S_t dy       dk = R u + P dm     R <- R + k dm^T   dg = <R, P>      R <- e^g R

and dc = db b (1 - b); dq' = r (dq - q^ (q^ . dq)) of q = r q', q^ = q without 1 / sqrt(D).
N = B T rows of X numbers; g, c (N,V); y (N, V E). first[i] is the first row of row i's segment,
over all rows. Saved: states (B,V,S,D,E), what every L-th row sees, so that backward computes L
states again at a time. D at most 256. float32, C-contiguous; dx, dg and dc are overwritten.
cached: the T rows come behind past[b] others, after which the state (B,V,D,E) is; those from
count[b] on are none: y is 0 there, and the state does not know them. No gradient.
Source: Yang, Kautz & Hatamizadeh 2024, Gated Delta Networks, arXiv:2412.06464, section 3.
"""
from libc.math cimport expf, sqrtf
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from toynn._kernels._common cimport at2, ids1, sigmoid_, sigmoid_slope_
from toynn._kernels._delta cimport (
    MOST, WIDE, Head, begins, head_of, load, norm_backward, normalised, row_backward, step, store,
)
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

import numpy as np

from toynn._kernels._check import check
from toynn.checks import segments_within

cdef void _forward_blocks(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """WIDE columns of a head of a sequence, over its rows."""
    cdef float* y = <float*>a.t[0]
    cdef float* states = <float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const float* g = <const float*>a.t[3]
    cdef const float* c = <const float*>a.t[4]
    cdef const int* first = <const int*>a.t[5]
    cdef Py_ssize_t T = a.n[1], S = a.n[2], K = a.n[3], V = a.n[4], D = a.n[5], E = a.n[6]
    cdef Py_ssize_t L = a.n[7], X = a.n[8], blocks = (E + WIDE - 1) // WIDE
    cdef Py_ssize_t task, h, n, t, e0, width
    cdef float state[MOST * WIDE]
    cdef float q[MOST]
    cdef float k[MOST]
    cdef const float* r
    cdef Head s
    for task in range(begin, end):
        h = task // blocks % V
        s = head_of(K, D, E, h)
        e0 = task % blocks * WIDE
        width = min(WIDE, E - e0)
        for t in range(T):
            n = task // blocks // V * T + t
            r = x + n * X
            if begins(first, n, T):
                memset(state, 0, D * WIDE * sizeof(float))
            if t % L == 0:
                store(states + (task // blocks * S + t // L) * D * E + e0, state, D, E, width)
            normalised(q, r + s.q, D, 1 / sqrtf(D))
            normalised(k, r + s.k, D, 1)
            step(
                y + n * V * E + h * E + e0, state, state, q, k, r + s.v + e0,
                expf(g[n * V + h]), sigmoid_(c[n * V + h]), D, width,
            )


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], V = a.n[4], E = a.n[6]
    parallel_for(_forward_blocks, a, B * V * ((E + WIDE - 1) // WIDE))


cdef inline void _block_backward(
    KernelArgs* a, float* room, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t e0
) noexcept nogil:
    """WIDE columns of a head of a sequence: dv; what they add to dq, dk, dg and db.

    room: the states of L rows and what the first of them sees, zeros, R.
    """
    cdef float* dx = <float*>a.t[0]
    cdef float* dg = <float*>a.t[1]
    cdef float* dc = <float*>a.t[2]
    cdef const float* dy = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* g = <const float*>a.t[5]
    cdef const float* c = <const float*>a.t[6]
    cdef const float* states = <const float*>a.t[7]
    cdef const int* first = <const int*>a.t[8]
    cdef Py_ssize_t T = a.n[1], S = a.n[2], K = a.n[3], V = a.n[4], D = a.n[5], E = a.n[6]
    cdef Py_ssize_t L = a.n[7], X = a.n[8], n, t, i, begin
    cdef Py_ssize_t width = min(WIDE, E - e0), size = D * WIDE
    cdef Head s = head_of(K, D, E, h)
    cdef float q[MOST]
    cdef float k[MOST]
    cdef float* zeros = room + (L + 1) * size
    cdef float* R = room + (L + 2) * size
    cdef const float* before
    cdef const float* r
    cdef float* d
    memset(zeros, 0, 2 * size * sizeof(float))
    for i in range((T + L - 1) // L):
        begin = ((T + L - 1) // L - 1 - i) * L
        load(room, states + ((batch * V + h) * S + begin // L) * D * E + e0, D, E, width)
        for t in range(begin, min(begin + L, T)):
            n = batch * T + t
            r = x + n * X
            before = zeros if begins(first, n, T) else room + (t - begin) * size
            normalised(q, r + s.q, D, 1 / sqrtf(D))
            normalised(k, r + s.k, D, 1)
            step(
                NULL, room + (t - begin + 1) * size, before, q, k, r + s.v + e0,
                expf(g[n * V + h]), sigmoid_(c[n * V + h]), D, width,
            )
        for t in range(min(begin + L, T) - 1, begin - 1, -1):
            n = batch * T + t
            r, d = x + n * X, dx + n * X
            before = zeros if begins(first, n, T) else room + (t - begin) * size
            normalised(q, r + s.q, D, 1 / sqrtf(D))
            normalised(k, r + s.k, D, 1)
            dg[n * V + h] += row_backward(
                d + s.q, d + s.k, d + s.v + e0, &dc[n * V + h], R, dy + n * V * E + h * E + e0,
                room + (t - begin + 1) * size, before, q, k, r + s.v + e0,
                expf(g[n * V + h]), sigmoid_(c[n * V + h]), D, width,
            )
            if begins(first, n, T):
                memset(R, 0, size * sizeof(float))


cdef void _backward_heads(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Shares of the heads of q and k, each with all heads of v that read it, in order."""
    cdef float* dx = <float*>a.t[0]
    cdef float* dg = <float*>a.t[1]
    cdef float* dc = <float*>a.t[2]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* c = <const float*>a.t[6]
    cdef Py_ssize_t B = a.n[0], T = a.n[1], K = a.n[3], V = a.n[4], D = a.n[5], E = a.n[6]
    cdef Py_ssize_t L = a.n[7], X = a.n[8], share, task, i, h, n, block
    cdef float slope = 0
    cdef float* room
    cdef Head s
    for share in range(begin, end):
        room = <float*>a.workspace + share * (L + 3) * D * WIDE
        for task in range(share * B * K // a.n_threads, (share + 1) * B * K // a.n_threads):
            s = head_of(K, D, E, task % K)
            for n in range(task // K * T, (task // K + 1) * T):
                memset(dx + n * X + s.q, 0, D * sizeof(float))
                memset(dx + n * X + s.k, 0, D * sizeof(float))
            for i in range(V // K):
                h = i * K + task % K
                for n in range(task // K * T, (task // K + 1) * T):
                    dg[n * V + h] = 0
                    dc[n * V + h] = 0
                for block in range((E + WIDE - 1) // WIDE):
                    _block_backward(a, room, task // K, h, block * WIDE)
                for n in range(task // K * T, (task // K + 1) * T):
                    sigmoid_slope_(c[n * V + h], &slope)
                    dc[n * V + h] *= slope
            for n in range(task // K * T, (task // K + 1) * T):
                norm_backward(
                    dx + n * X + s.q, x + n * X + s.q, D, 1 / sqrtf(D)
                )
                norm_backward(dx + n * X + s.k, x + n * X + s.k, D, 1)


cdef void _backward(KernelArgs* a) noexcept nogil:
    parallel_for(_backward_heads, a, a.n_threads)


cdef void _cached_blocks(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """WIDE columns of a head of a sequence, over the rows that come next."""
    cdef float* y = <float*>a.t[0]
    cdef float* state = <float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const float* g = <const float*>a.t[3]
    cdef const float* c = <const float*>a.t[4]
    cdef const int* past = <const int*>a.t[5]
    cdef const int* count = <const int*>a.t[6]
    cdef Py_ssize_t T = a.n[1], K = a.n[2], V = a.n[3], D = a.n[4], E = a.n[5], X = a.n[6]
    cdef Py_ssize_t blocks = (E + WIDE - 1) // WIDE, task, b, h, n, t, e0, width
    cdef float now[MOST * WIDE]
    cdef float q[MOST]
    cdef float k[MOST]
    cdef const float* r
    cdef Head s
    for task in range(begin, end):
        b = task // blocks // V
        h = task // blocks % V
        s = head_of(K, D, E, h)
        e0 = task % blocks * WIDE
        width = min(WIDE, E - e0)
        if past[b] == 0:
            memset(now, 0, D * WIDE * sizeof(float))
        else:
            load(now, state + task // blocks * D * E + e0, D, E, width)
        for t in range(T):
            n = b * T + t
            if t >= count[b]:
                memset(y + n * V * E + h * E + e0, 0, width * sizeof(float))
                continue
            r = x + n * X
            normalised(q, r + s.q, D, 1 / sqrtf(D))
            normalised(k, r + s.k, D, 1)
            step(
                y + n * V * E + h * E + e0, now, now, q, k, r + s.v + e0,
                expf(g[n * V + h]), sigmoid_(c[n * V + h]), D, width,
            )
        store(state + task // blocks * D * E + e0, now, D, E, width)


cdef void _cached(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], V = a.n[3], E = a.n[5]
    parallel_for(_cached_blocks, a, B * V * ((E + WIDE - 1) // WIDE))


def workspace(
    str name, Py_ssize_t B, Py_ssize_t T, Py_ssize_t K, Py_ssize_t V, Py_ssize_t D, Py_ssize_t E,
    Py_ssize_t X, Py_ssize_t S=0, Py_ssize_t L=0, int n_threads=1,
):
    """Bytes of scratch memory that an entry needs at these sizes; 0 where it needs none."""
    return n_threads * (L + 3) * D * WIDE * sizeof(float) if name == "backward" else 0


cdef Py_ssize_t _heads(
    str where, Py_ssize_t columns, Py_ssize_t V, Py_ssize_t D, Py_ssize_t E
) except -1:
    """Return how many heads of q and k a row of x has."""
    cdef Py_ssize_t both = columns - V * E
    if not 0 < D <= MOST or V < 1 or E < 1 or both < 2 * D or both % (2 * D) or V * 2 * D % both:
        raise ValueError(
            f"{where}: needs x of 2 K heads of D (1 to {MOST}) and V of E, K dividing V; got "
            f"{columns} columns, V, D, E = {V}, {D}, {E}"
        )
    return both // (2 * D)


cdef _describe(
    KernelArgs* a, str where, const float[:, :, :, :, ::1] states, Py_ssize_t rows,
    Py_ssize_t columns, Py_ssize_t length, first,
):
    """Fill in the sizes."""
    cdef Py_ssize_t B = states.shape[0], V = states.shape[1], S = states.shape[2]
    cdef Py_ssize_t D = states.shape[3], E = states.shape[4], T = rows // max(B, 1)
    a.n[3] = _heads(where, columns, V, D, E)
    length = min(length, max(T, 1))  # longer ones are the same, and their sums overflow
    if B * T != rows or length < 1 or (T + length - 1) // length > S:
        raise ValueError(
            f"{where}: needs whole sequences, and states of each {length} (>= 1) rows; got {rows} "
            f"rows, states {B}, {S}"
        )
    if first is not None:
        check(where, f"{rows} rows", 1, first=(first, (rows,)))
        segments_within(T)(f"{where}: first", np.asarray(first))
    a.n[0], a.n[1], a.n[2], a.n[4], a.n[5], a.n[6], a.n[7] = B, T, S, V, D, E, length
    a.n[8] = columns


def forward(
    float[:, ::1] y, float[:, :, :, :, ::1] states, const float[:, ::1] x, const float[:, ::1] g,
    const float[:, ::1] c, const int[::1] first=None, Py_ssize_t length=32, int n_threads=1,
):
    """Overwrite y (B*T, V*E) and states (B,V,S,D,E) from x, g and c (B*T,V).

    ``length`` is L; states beyond the last are left alone. ``first`` is (B*T,).
    """
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], V = states.shape[1], E = states.shape[4]
    shape = np.shape(states)
    check(
        "delta.forward", f"{N} rows, states of {V} heads of {E}", n_threads, y=(y, (N, V * E)),
        g=(g, (N, V)), c=(c, (N, V)), x=(x, (N, x.shape[1])), states=(states, shape),
    )
    _describe(&a, "delta.forward", states, N, x.shape[1], length, first)
    a.t[0], a.t[2], a.t[3], a.t[4] = at2(y), at2(x), at2(g), at2(c)
    a.t[1] = <void*>&states[0, 0, 0, 0, 0] if N else NULL
    a.t[5] = ids1(first) if first is not None else NULL
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[:, ::1] dg, float[:, ::1] dc, const float[:, ::1] dy,
    const float[:, ::1] x, const float[:, ::1] g, const float[:, ::1] c,
    const float[:, :, :, :, ::1] states, const int[::1] first=None, Py_ssize_t length=32,
    int n_threads=1,
):
    """Overwrite dx, dg and dc; the rest as in forward."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], V = states.shape[1], E = states.shape[4], nbytes
    shape = np.shape(states)
    check(
        "delta.backward", f"{N} rows, states of {V} heads of {E}", n_threads, dy=(dy, (N, V * E)),
        g=(g, (N, V)), c=(c, (N, V)), dx=(dx, (N, x.shape[1])), dg=(dg, (N, V)), dc=(dc, (N, V)),
        states=(states, shape),
    )
    _describe(&a, "delta.backward", states, N, x.shape[1], length, first)
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(dx), at2(dg), at2(dc), at2(dy), at2(x)
    a.t[5], a.t[6] = at2(g), at2(c)
    a.t[7] = <void*>&states[0, 0, 0, 0, 0] if N else NULL
    a.t[8] = ids1(first) if first is not None else NULL
    a.n_threads = n_threads
    nbytes = workspace(
        "backward", a.n[0], a.n[1], a.n[3], V, a.n[5], E, a.n[8], a.n[2], a.n[7], n_threads
    )
    a.workspace = malloc(nbytes)
    if a.workspace == NULL:
        raise MemoryError(f"delta.backward: no {nbytes} bytes of scratch memory")
    with nogil:
        _backward(&a)
    free(a.workspace)


def cached(
    float[:, ::1] y, float[:, :, :, ::1] state, const float[:, ::1] x, const float[:, ::1] g,
    const float[:, ::1] c, const int[::1] past, const int[::1] count, int n_threads=1,
):
    """Overwrite y (B*T, V*E) and state (B,V,D,E) from x, g and c (B*T,V), past and count (B,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], B = state.shape[0], V = state.shape[1], D = state.shape[2]
    cdef Py_ssize_t E = state.shape[3], T = N // max(B, 1), b
    check(
        "delta.cached", f"{N} rows, state of {V} heads ({D}, {E})", n_threads, y=(y, (N, V * E)),
        g=(g, (N, V)), c=(c, (N, V)), past=(past, (B,)), count=(count, (B,)),
        x=(x, (B * T, x.shape[1])),
        state=(state, np.shape(state)),
    )
    a.n[2] = _heads("delta.cached", x.shape[1], V, D, E)
    for b in range(B):
        if past[b] < 0 or not 0 <= count[b] <= T:
            raise ValueError(
                f"delta.cached: {T} rows need a past >= 0 and a count of them; got {past[b]}, "
                f"{count[b]}"
            )
    a.t[0], a.t[2], a.t[3], a.t[4] = at2(y), at2(x), at2(g), at2(c)
    a.t[1] = <void*>&state[0, 0, 0, 0] if B else NULL
    a.t[5], a.t[6] = ids1(past), ids1(count)
    a.n[0], a.n[1], a.n[3], a.n[4], a.n[5] = B, T, V, D, E
    a.n[6] = x.shape[1]
    a.n_threads = n_threads
    with nogil:
        _cached(&a)


entries = {
    "forward": entry(_forward, "y states x g c first?", sizes="B T S K V D E L X"),
    "backward": entry(
        _backward, "dx dg dc dy x g c states first?", sizes="B T S K V D E L X"
    ),
    "cached": entry(_cached, "y state x g c past count", sizes="B T K V D E X"),
}
