"""The gated delta rule: a state that decays, and unlearns what it stored under a key.

    S_t = e^g[t] S_{t-1} + k (b (v - e^g[t] S_{t-1}^T k))^T        y[t] = S_t^T q

    q = q' / sqrt(q'.q' + eps) / sqrt(D)     k = k' / sqrt(k'.k' + eps)     b = 1 / (1 + e^-c[t])

for each of V heads of values, of E columns; S (D,E) is 0 where a sequence begins. A row of x has q'
of K heads of D, k' of K heads of D, and v of V heads of E. Head h of V reads head h mod K of q and
k; if heads are grouped, it reads head h // (V / K). Backward goes from the last row to the first.
Let P = e^g S_{t-1}, m = P^T k, u = b (v - m), and R = dL/dS_t:

    R  += q dy^T       du = R^T k          dv = b du         dm = -b du       db = du . (v - m)
    dq  = S_t dy       dk = R u + P dm     R <- R + k dm^T   dg = <R, P>      R <- e^g R

and dc = db b (1 - b); dq' = r (dq - q^ (q^ . dq)) of q = r q', q^ = q without 1 / sqrt(D).
N = B T rows of X numbers; g, c (N,V); y (N, V E). first[i] is the row at which row i's example
starts, over all rows. Saved: states (B,V,S,D,E), the state before every L-th row, so that backward
computes L states at a time. D at most 256. float32, C-contiguous; dx, dg and dc are overwritten.
cached: the T rows follow past[b] earlier rows, whose last state is state (B,V,D,E). Only the first
count[b] rows exist: for later ones y is 0, and the state ignores them. No gradient.
_delta.pxd says in words what a row does to a state.
Source: Yang, Kautz & Hatamizadeh 2024, Gated Delta Networks, arXiv:2412.06464, section 3.
"""
from libc.math cimport sqrtf
from libc.string cimport memset

from toynn._kernels.base._common cimport sigmoid_slope_
from toynn._kernels.recurrent._delta cimport (
    MOST, WIDE, Head, Row, begins, head_of, load, norm_backward, read_row, row_backward, step,
    store, tasks,
)
from toynn._kernels.args.delta cimport Backward, Cached, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import example_starts


cdef inline void forward_block(Forward* a, Py_ssize_t at) noexcept nogil:
    """Compute WIDE columns of a head of a sequence, over its rows."""
    cdef Py_ssize_t T = a.T, K = a.K, V = a.V, D = a.D, E = a.E, blocks = tasks(1, a.E)
    cdef Py_ssize_t head = at // blocks, h = head % V, e0 = at % blocks * WIDE, n, t
    cdef Py_ssize_t width = min(WIDE, E - e0)
    cdef float[MOST * WIDE] state
    cdef Head s = head_of(K, V, D, E, a.grouped, h)
    cdef Row row
    for t in range(T):
        n = head // V * T + t
        if begins(a.first, n, T):
            memset(state, 0, D * WIDE * sizeof(float))
        if t % a.L == 0:
            store(a.states + (head * a.S + t // a.L) * D * E + e0, state, D, E, width)
        read_row(&row, a.x + n * a.X, &s, D, e0, a.g[n * V + h], a.c[n * V + h])
        step(a.y + (n * V + h) * E + e0, state, state, &row, D, width)


cdef inline void _block_backward(
    Backward* a, float* room, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t e0
) noexcept nogil:
    """For WIDE columns of a head of a sequence: write dv; add to dq, dk, dg and db.

    room has the states before the first of L rows and after each of them, a state of zeros, and R.
    """
    cdef Py_ssize_t T = a.T, S = a.S, K = a.K, V = a.V, D = a.D, E = a.E
    cdef Py_ssize_t L = a.L, X = a.X, n, t, i, begin
    cdef Py_ssize_t width = min(WIDE, E - e0), size = D * WIDE
    cdef Head s = head_of(K, V, D, E, a.grouped, h)
    cdef Row row
    cdef float* zeros = room + (L + 1) * size
    cdef float* R = room + (L + 2) * size
    cdef const float* before
    cdef float* d
    memset(zeros, 0, 2 * size * sizeof(float))
    for i in range((T + L - 1) // L):
        begin = ((T + L - 1) // L - 1 - i) * L
        load(room, a.states + ((batch * V + h) * S + begin // L) * D * E + e0, D, E, width)
        for t in range(begin, min(begin + L, T)):
            n = batch * T + t
            before = zeros if begins(a.first, n, T) else room + (t - begin) * size
            read_row(&row, a.x + n * X, &s, D, e0, a.g[n * V + h], a.c[n * V + h])
            step(NULL, room + (t - begin + 1) * size, before, &row, D, width)
        for t in range(min(begin + L, T) - 1, begin - 1, -1):
            n = batch * T + t
            d = a.dx + n * X
            before = zeros if begins(a.first, n, T) else room + (t - begin) * size
            read_row(&row, a.x + n * X, &s, D, e0, a.g[n * V + h], a.c[n * V + h])
            a.dg[n * V + h] += row_backward(
                d + s.q, d + s.k, d + s.v + e0, &a.dc[n * V + h], R, a.dy + n * V * E + h * E + e0,
                room + (t - begin + 1) * size, before, &row, D, width,
            )
            if begins(a.first, n, T):
                memset(R, 0, size * sizeof(float))


cdef inline void backward_share(Backward* a, Py_ssize_t at) noexcept nogil:
    """Compute a share of the heads of q and k, each with all heads of v that read it, in order."""
    cdef Py_ssize_t T = a.T, K = a.K, V = a.V, D = a.D, X = a.X, all = a.B * a.K
    cdef Py_ssize_t task, i, h, n, begin, end, block
    cdef float slope = 0
    cdef float* room = <float*>a.workspace + at * (a.L + 3) * D * WIDE
    cdef Head s
    for task in range(at * all // a.n_threads, (at + 1) * all // a.n_threads):
        s = head_of(K, V, D, a.E, 1, task % K * (V // K))
        begin = task // K * T
        end = begin + T
        for n in range(begin, end):
            memset(a.dx + n * X + s.q, 0, D * sizeof(float))
            memset(a.dx + n * X + s.k, 0, D * sizeof(float))
        for i in range(V // K):
            h = task % K * (V // K) + i if a.grouped else i * K + task % K
            for n in range(begin, end):
                a.dg[n * V + h] = 0
                a.dc[n * V + h] = 0
            for block in range(tasks(1, a.E)):
                _block_backward(a, room, task // K, h, block * WIDE)
            for n in range(begin, end):
                sigmoid_slope_(a.c[n * V + h], &slope)
                a.dc[n * V + h] *= slope
        for n in range(begin, end):
            norm_backward(a.dx + n * X + s.q, a.x + n * X + s.q, D, 1 / sqrtf(D))
            norm_backward(a.dx + n * X + s.k, a.x + n * X + s.k, D, 1)


cdef Py_ssize_t _backward_scratch(Backward* a) noexcept nogil:
    """For each thread: the state before L rows and after each of them, zeros, and R."""
    return a.n_threads * (a.L + 3) * a.D * WIDE * sizeof(float)


cdef inline void cached_block(Cached* a, Py_ssize_t at) noexcept nogil:
    """Compute WIDE columns of a head of a sequence, over the rows that come next."""
    cdef Py_ssize_t T = a.T, K = a.K, V = a.V, D = a.D, E = a.E, blocks = tasks(1, a.E)
    cdef Py_ssize_t head = at // blocks, b = head // V, h = head % V, e0 = at % blocks * WIDE
    cdef Py_ssize_t width = min(WIDE, E - e0), n, t
    cdef float[MOST * WIDE] now
    cdef Row row
    cdef Head s = head_of(K, V, D, E, a.grouped, h)
    if a.past[b] == 0:
        memset(now, 0, D * WIDE * sizeof(float))
    else:
        load(now, a.state + head * D * E + e0, D, E, width)
    for t in range(T):
        n = b * T + t
        if t >= a.count[b]:
            memset(a.y + (n * V + h) * E + e0, 0, width * sizeof(float))
            continue
        read_row(&row, a.x + n * a.X, &s, D, e0, a.g[n * V + h], a.c[n * V + h])
        step(a.y + (n * V + h) * E + e0, now, now, &row, D, width)
    store(a.state + head * D * E + e0, now, D, E, width)


def _heads_fit(where, arrays, sizes, options):
    K, V, D, E = (sizes[name] for name in "KVDE")
    if not (0 < D <= MOST and E >= 1 and K >= 1 and V >= 1 and V % K == 0):
        raise ValueError(
            f"{where}: needs x of 2 K heads of D (1 to {MOST}) and V of E, K dividing V; got "
            f"x {arrays['x'].shape}: K, V, D, E = {K}, {V}, {D}, {E}"
        )


def _states_fit(where, arrays, sizes, options):
    _heads_fit(where, arrays, sizes, options)
    T, S, L = (sizes[name] for name in "TSL")
    if not 1 <= L <= max(T, MOST) or -(-T // L) > S:
        raise ValueError(
            f"{where}: needs a state of every L-th of {T} rows, L from 1 to {max(T, MOST)}; got L "
            f"= {L}, states {arrays['states'].shape}"
        )
    example_starts(where, arrays, sizes, options)


def _rows_fit(where, arrays, sizes, options):
    _heads_fit(where, arrays, sizes, options)
    past, count = arrays["past"], arrays["count"]
    if (past < 0).any() or (count < 0).any() or (count > sizes["T"]).any():
        raise ValueError(
            f"{where}: {sizes['T']} rows need a past >= 0 and a count of them; got "
            f"{past.tolist()}, {count.tolist()}"
        )


forward = entry(
    "blocks tasks(B*V,E): "
    "y[B*T V E]; states[B V S D E] <- x[B*T 2*K*D+V*E] g[B*T V] c[B*T V] i32 first[B*T]? "
    "| L=32 X=2*K*D+V*E grouped=0",
    _states_fit,
)
backward = entry(
    "shares n_threads: "
    "dx[B*T 2*K*D+V*E] dg[B*T V] dc[B*T V] <- dy[B*T V E] x[B*T 2*K*D+V*E] g[B*T V] c[B*T V] "
    "states[B V S D E] i32 first[B*T]? | L=32 X=2*K*D+V*E grouped=0",
    _states_fit,
)
cached = entry(
    "blocks tasks(B*V,E): "
    "y[B*T V E] state[B V D E]! <- x[B*T 2*K*D+V*E] g[B*T V] c[B*T V] i32 past[B] i32 count[B] "
    "| X=2*K*D+V*E grouped=0",
    _rows_fit,
)
