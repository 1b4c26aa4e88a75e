"""A selective state space (Mamba 2), computed in chunks of rows.

    S_t = e^(a p[t]) S_{t-1} + b[t] (p[t] x[t])^T        y[t] = S_t^T c[t] + s x[t]
    p[t] = log(1 + e^(dt[t] + bias))

for each of V heads of E columns; S (D,E) is 0 where a sequence begins. A row of x has x of V heads
of E, b of G groups of D, and c of G groups of D. Head h reads group h G / V. A chunk has ROWS rows:

    M[t,i] = e^(a p[i+1] + .. + a p[t])    what is left at row t of what row i wrote, 0 for i > t
    W = M * C B^T        u = p x           m[t]: what is left at row t of the S before the chunk
    Y = W U + m (C S) + s X                S <- m[last] S + B^T (M[last] U)

Backward, from the last chunk to the first, with S before the chunk and R = dL/dS after it:

    dU = W^T dY + M[last] (B R)            Z = M * dY U^T, summed over the heads of a group
    dC = Z B + (m dY) S^T                  dB = Z^T C + (M[last] U) R^T
    dX = p dU + s dY                       R <- m[last] R + C^T (m dY)
    dp[t] = du . x + a g[t]                da = sum_t p[t] g[t]        ds = sum_t dy . x
    g[t] = dL/d(a p[t]): from all that rows t .. get from rows before t, and from S; see _forgotten

ddt = dp / (1 + e^-(dt + bias)), and dbias is its sum. All products of chunks are matrix products;
their cost is linear in T. N = B T rows. first[i] is the row at which row i's example starts,
counted over all rows: M and m restart there. Nothing is saved: backward recomputes the states of
all chunks, in scratch memory. float32, C-contiguous; dx and ddt are overwritten, the others
overwritten or added to. cached: the T rows follow past[b] earlier rows, whose last state is state
(B,V,D,E). Only the first count[b] rows exist: for later ones y is 0, and the state ignores them. No
gradient.
Source: Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060, section 6.
"""
from libc.math cimport expf
from libc.string cimport memset

from toynn._kernels.base._common cimport dot_, sigmoid_, sum_
from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.recurrent._softplus cimport softplus_
from toynn._kernels.args.ssd cimport Backward, Cached, Forward
from toynn._kernels.base.entry cimport entry
from toynn._kernels.gemm._gemm cimport multiply
from toynn._kernels.gemm._product cimport Operand, blocks_of, floats_at

from toynn._kernels.base._check import example_starts

cdef enum:
    ROWS = 64          # rows of a chunk
    SQUARE = ROWS * ROWS
    STRIP = 32         # rows of a triangle, such as W, that are computed together

ctypedef fused Args:
    Forward
    Backward
    Cached

# A chunk as a head sees it: n rows from row ``at`` on, of all B T. ``follows``: rows of its
# sequence are before it. ``precedes``: rows are after it, so that S and R after it matter.
cdef struct Chunk:
    Py_ssize_t n, at
    bint follows, precedes
    float[ROWS] p
    float[ROWS] m
    float[ROWS * ROWS] M  # rows of ROWS numbers


cdef inline Py_ssize_t _chunks(Py_ssize_t T) noexcept nogil:
    return blocks_of(T, ROWS)


cdef inline void _read_chunk(
    Chunk* k, const Args* a, Py_ssize_t b, Py_ssize_t j, Py_ssize_t rows, Py_ssize_t h
) noexcept nogil:
    """Fill in chunk j of the ``rows`` rows of sequence b."""
    cdef Py_ssize_t at = b * a.T + j * ROWS, t, i
    cdef float left, whole
    cdef float* row
    cdef const int* first = NULL
    k.n, k.at = min(<Py_ssize_t>ROWS, rows - j * ROWS), at
    if Args is Cached:
        k.follows = k.precedes = True
    else:
        first = a.first
        k.follows, k.precedes = j > 0, j + 1 < _chunks(rows)
    whole = 1 if k.follows else 0
    for t in range(k.n):
        k.p[t] = softplus_(a.dt[(at + t) * a.V + h] + a.bias[h])
        left = expf(a.a[h] * k.p[t])
        if first != NULL and first[at + t] == at + t:
            left = 0
        whole *= left
        k.m[t] = whole
        row = k.M + t * ROWS
        for i in range(t):
            row[i] = left * row[i - ROWS]
        row[t] = 1
        for i in range(t + 1, ROWS):
            row[i] = 0


cdef inline const float* _b(const Args* a, Py_ssize_t at, Py_ssize_t g) noexcept nogil:
    return a.x + at * a.X + a.V * a.E + g * a.D


cdef inline const float* _c(const Args* a, Py_ssize_t at, Py_ssize_t g) noexcept nogil:
    return a.x + at * a.X + a.V * a.E + (a.G + g) * a.D


# -- Products of a chunk -------------------------------------------------------------------------


cdef inline void _product(
    float* y, Py_ssize_t ldy, Operand a, Operand b, Py_ssize_t K, bint add
) noexcept nogil:
    multiply(y, ldy, &a, &b, K, add)


cdef inline Operand _rows(const float* x, Py_ssize_t n, Py_ssize_t ld) noexcept nogil:
    """Operand A: n rows of x."""
    return floats_at(x, n, ld, 1, True)


cdef inline Operand _transposed(const float* x, Py_ssize_t n, Py_ssize_t ld) noexcept nogil:
    """Operand A: n columns of x."""
    return floats_at(x, n, 1, ld, True)


cdef inline Operand _columns(const float* x, Py_ssize_t n, Py_ssize_t ld) noexcept nogil:
    """Operand B: n columns of x."""
    return floats_at(x, n, 1, ld, False)


cdef inline Operand _columns_transposed(
    const float* x, Py_ssize_t n, Py_ssize_t ld
) noexcept nogil:
    """Operand B: n rows of x."""
    return floats_at(x, n, ld, 1, False)


cdef inline void _scores(
    float* y, const float* x, Py_ssize_t ldx, const float* z, Py_ssize_t ldz, Py_ssize_t n,
    Py_ssize_t K,
) noexcept nogil:
    """y (n,ROWS) = x z^T, at least its lower triangle; x and z have n rows of K."""
    cdef Py_ssize_t strip, t, rows
    for strip in range(blocks_of(n, STRIP)):
        t = strip * STRIP
        rows = min(<Py_ssize_t>STRIP, n - t)
        _product(
            y + t * ROWS, ROWS, _rows(x + t * ldx, rows, ldx),
            _columns_transposed(z, t + rows, ldz), K, False,
        )


cdef inline void _add_lower(
    float* y, Py_ssize_t ldy, const float* w, const float* x, Py_ssize_t ldx, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """y (n,width) += w x, with the lower triangle of w (n,ROWS)."""
    cdef Py_ssize_t strip, t, rows
    for strip in range(blocks_of(n, STRIP)):
        t = strip * STRIP
        rows = min(<Py_ssize_t>STRIP, n - t)
        _product(
            y + t * ldy, ldy, _rows(w + t * ROWS, rows, ROWS), _columns(x, width, ldx), t + rows,
            True,
        )


cdef inline void _add_upper(
    float* y, Py_ssize_t ldy, const float* w, const float* x, Py_ssize_t ldx, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """y (n,width) += w^T x, with the lower triangle of w (n,ROWS)."""
    cdef Py_ssize_t strip, t, rows
    for strip in range(blocks_of(n, STRIP)):
        t = strip * STRIP
        rows = min(<Py_ssize_t>STRIP, n - t)
        _product(
            y + t * ldy, ldy, _transposed(w + t * ROWS + t, rows, ROWS),
            _columns(x + t * ldx, width, ldx), n - t, True,
        )


cdef inline void _weigh_rows(
    float* y, const float* x, Py_ssize_t ldx, const float* w, Py_ssize_t n, Py_ssize_t width
) noexcept nogil:
    """y (n,width) = x (n,width), row t multiplied by w[t]."""
    cdef Py_ssize_t t, e
    for t in range(n):
        for e in range(width):
            y[t * width + e] = w[t] * x[t * ldx + e]


cdef inline void _scale_rows(
    float* y, const float* w, Py_ssize_t n, Py_ssize_t width
) noexcept nogil:
    """Multiply row t of y (n,width) by w[t]."""
    cdef Py_ssize_t t, e
    for t in range(n):
        for e in range(width):
            y[t * width + e] *= w[t]


cdef inline void _weights(float* w, const Chunk* k, const float* scores) noexcept nogil:
    """W of a chunk, with zeros above its diagonal."""
    cdef Py_ssize_t t, i
    for t in range(k.n):
        for i in range(t + 1):
            w[t * ROWS + i] = k.M[t * ROWS + i] * scores[t * ROWS + i]
        for i in range(t + 1, ROWS):
            w[t * ROWS + i] = 0


cdef inline void _next_state(
    float* after, const float* before, const Chunk* k, const float* b, Py_ssize_t X,
    const float* u, Py_ssize_t D, Py_ssize_t E
) noexcept nogil:
    """S after a chunk, which may overwrite S before it; u is already weighted by M[last]."""
    cdef Py_ssize_t i
    for i in range(D * E):
        after[i] = k.m[k.n - 1] * before[i]
    _product(after, E, _transposed(b, D, X), _columns(u, E, E), k.n, True)


# -- Forward ---------------------------------------------------------------------------------------


cdef inline void _read_state(
    float* y, float* S, const Args* a, const Chunk* k, Py_ssize_t h, const float* scores,
    float* room
) noexcept nogil:
    """y of a chunk, and S after it; room has (ROWS,ROWS) and (ROWS,E)."""
    cdef Py_ssize_t D = a.D, E = a.E, ldy = a.V * E, g = h * a.G // a.V, n = k.n, t, e
    cdef const float* x = a.x + k.at * a.X + h * E
    cdef float* w = room
    cdef float* u = room + SQUARE
    _weigh_rows(u, x, a.X, k.p, n, E)
    _weights(w, k, scores)
    if k.follows:
        _product(y, ldy, _rows(_c(a, k.at, g), n, a.X), _columns(S, E, E), D, False)
    else:
        for t in range(n):
            memset(y + t * ldy, 0, E * sizeof(float))
    for t in range(n):
        for e in range(E):
            y[t * ldy + e] = k.m[t] * y[t * ldy + e] + a.skip[h] * x[t * a.X + e]
    _add_lower(y, ldy, w, u, E, n, E)
    if k.precedes:
        _scale_rows(u, k.M + (n - 1) * ROWS, n, E)
        _next_state(S, S, k, _b(a, k.at, g), a.X, u, D, E)


cdef inline Py_ssize_t _room(Py_ssize_t D, Py_ssize_t E) noexcept nogil:
    """Numbers of a state and of the room of _read_state."""
    return D * E + SQUARE + ROWS * E


cdef void _score_tasks(Args* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute C B^T of chunks, once for all heads of a group."""
    cdef Py_ssize_t S = _chunks(a.T), task, t, at
    for task in range(begin, end):
        t = task // a.G % S * ROWS
        at = task // a.G // S * a.T + t
        _scores(
            <float*>a.workspace + task * SQUARE, _c(a, at, task % a.G), a.X,
            _b(a, at, task % a.G), a.X, min(<Py_ssize_t>ROWS, a.T - t), a.D,
        )


cdef inline const float* _scores_of(
    const Args* a, Py_ssize_t b, Py_ssize_t j, Py_ssize_t h
) noexcept nogil:
    return <float*>a.workspace + ((b * _chunks(a.T) + j) * a.G + h * a.G // a.V) * SQUARE


cdef inline float* _room_of(const Args* a, Py_ssize_t share) noexcept nogil:
    cdef Py_ssize_t scores = a.B * _chunks(a.T) * a.G * SQUARE
    return <float*>a.workspace + scores + share * _room(a.D, a.E)


cdef void _forward_shares(Forward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute shares of the heads of all sequences."""
    cdef Py_ssize_t T = a.T, V = a.V, E = a.E, share, task, j
    cdef float* S
    cdef Chunk k
    for share in range(begin, end):
        S = _room_of(a, share)
        for task in range(share * a.B * V // a.n_threads, (share + 1) * a.B * V // a.n_threads):
            memset(S, 0, a.D * E * sizeof(float))
            for j in range(_chunks(T)):
                _read_chunk(&k, a, task // V, j, T, task % V)
                _read_state(
                    a.y + (k.at * V + task % V) * E, S, a, &k, task % V,
                    _scores_of(a, task // V, j, task % V), S + a.D * E,
                )


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_score_tasks[Forward], a, a.B * _chunks(a.T) * a.G)
    parallel_for(<part_fn>_forward_shares, a, a.n_threads)


cdef inline Py_ssize_t _scratch(const Args* a) noexcept nogil:
    """Scores of all chunks; for each thread a state and the room of _read_state."""
    return (_room_of(a, a.n_threads) - <float*>a.workspace) * sizeof(float)


cdef Py_ssize_t _forward_scratch(Forward* a) noexcept nogil:
    return _scratch(a)


cdef Py_ssize_t _cached_scratch(Cached* a) noexcept nogil:
    return _scratch(a)


cdef void _cached_shares(Cached* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute shares of the heads of all sequences, over the rows that come next."""
    cdef Py_ssize_t T = a.T, V = a.V, E = a.E, share, task, b, h, j, t
    cdef float* S
    cdef Chunk k
    for share in range(begin, end):
        for task in range(share * a.B * V // a.n_threads, (share + 1) * a.B * V // a.n_threads):
            b, h = task // V, task % V
            S = a.state + task * a.D * E
            if a.past[b] == 0:
                memset(S, 0, a.D * E * sizeof(float))
            for j in range(_chunks(a.count[b])):
                _read_chunk(&k, a, b, j, a.count[b], h)
                _read_state(
                    a.y + (k.at * V + h) * E, S, a, &k, h, _scores_of(a, b, j, h),
                    _room_of(a, share) + a.D * E,
                )
            for t in range(a.count[b], T):
                memset(a.y + ((b * T + t) * V + h) * E, 0, E * sizeof(float))


cdef void _cached(Cached* a) noexcept nogil:
    parallel_for(<part_fn>_score_tasks[Cached], a, a.B * _chunks(a.T) * a.G)
    parallel_for(<part_fn>_cached_shares, a, a.n_threads)


# -- Backward --------------------------------------------------------------------------------------

# Parts of scratch memory: S before and R after each chunk, (B,V,chunks,D,E); g and dy . x of each
# row and head, (B T,V); for each thread the room of _chunk_shares.
cdef struct Scratch:
    float* S
    float* R
    float* g
    float* skips
    float* rooms


cdef inline Py_ssize_t _states(const Backward* a) noexcept nogil:
    return a.B * a.V * _chunks(a.T) * a.D * a.E


cdef inline Scratch _scratch_of(const Backward* a) noexcept nogil:
    cdef Scratch s
    s.S = <float*>a.workspace
    s.R = s.S + _states(a)
    s.g = s.R + _states(a)
    s.skips = s.g + a.B * a.T * a.V
    s.rooms = s.skips + a.B * a.T * a.V
    return s


cdef inline Py_ssize_t _backward_room(const Backward* a) noexcept nogil:
    return 4 * SQUARE + 2 * ROWS * a.E + ROWS * a.D


cdef Py_ssize_t _backward_scratch(Backward* a) noexcept nogil:
    cdef Py_ssize_t rows = 2 * a.B * a.T * a.V
    return (2 * _states(a) + rows + a.n_threads * _backward_room(a)) * sizeof(float)


cdef void _state_shares(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute shares of the heads: S before each chunk, then R after each."""
    cdef Py_ssize_t T = a.T, V = a.V, D = a.D, E = a.E, S = _chunks(a.T), size = a.D * a.E
    cdef Py_ssize_t share, task, h, j, i
    cdef Scratch s = _scratch_of(a)
    cdef float* u
    cdef float* state
    cdef Chunk k
    for share in range(begin, end):
        u = s.rooms + share * _backward_room(a)
        for task in range(share * a.B * V // a.n_threads, (share + 1) * a.B * V // a.n_threads):
            h = task % V
            memset(s.S + task * S * size, 0, size * sizeof(float))
            memset(s.R + (task * S + S - 1) * size, 0, size * sizeof(float))
            for j in range(S - 1):
                state = s.S + (task * S + j) * size
                _read_chunk(&k, a, task // V, j, T, h)
                _weigh_rows(u, a.x + k.at * a.X + h * E, a.X, k.p, ROWS, E)
                _scale_rows(u, k.M + (ROWS - 1) * ROWS, ROWS, E)
                _next_state(state + size, state, &k, _b(a, k.at, h * a.G // V), a.X, u, D, E)
            for j in range(S - 1, 0, -1):
                state = s.R + (task * S + j) * size
                _read_chunk(&k, a, task // V, j, T, h)
                _weigh_rows(u, a.dy + (k.at * V + h) * E, V * E, k.m, k.n, E)
                for i in range(size):
                    state[i - size] = k.m[k.n - 1] * state[i]
                _product(
                    state - size, E, _transposed(_c(a, k.at, h * a.G // V), D, a.X),
                    _columns(u, E, E), k.n, True,
                )


cdef inline void _forgotten(
    float* g, Py_ssize_t V, const float* z, const float* w, const float* reads,
    const float* writes, float whole, Py_ssize_t n
) noexcept nogil:
    """g of a chunk: for each row, the sum of all terms of dy . y with the row's decay as a factor.

    g[t] = sum of w z [i,j] over i >= t > j     rows from t on read rows before t
         + sum of reads[i] over i >= t          they read S
         + sum of writes[j] over j < t          what rows before t wrote is left in the next S
         + whole                                and S is
    Nothing is added that would have to be subtracted again: so no digits are lost.
    """
    cdef float[ROWS] below
    cdef float kept = whole
    cdef Py_ssize_t t, j
    for t in range(n):
        g[t * V] = kept
        kept += writes[t]
        below[t] = 0
    kept = 0
    for t in range(n - 1, -1, -1):
        for j in range(t):
            below[j] += w[t * ROWS + j] * z[t * ROWS + j]
        kept += reads[t]
        g[t * V] += kept + sum_(below, t)


cdef inline void _head_backward(
    Backward* a, const Chunk* k, Py_ssize_t h, const float* S, const float* R,
    const float* scores, float* total, float* db, float* dc, float* room, const Scratch* s
) noexcept nogil:
    """Compute dx and ddt of a head in a chunk, and add to Z, dB and dC.

    room has (ROWS,ROWS) twice, (ROWS,E) twice, and (ROWS,D).
    """
    cdef Py_ssize_t D = a.D, E = a.E, V = a.V, X = a.X, n = k.n, g = h * a.G // V, t, i, at
    cdef const float* x = a.x + k.at * X + h * E
    cdef const float* dy = a.dy + (k.at * V + h) * E
    cdef const float* last = k.M + (n - 1) * ROWS
    cdef float* dx = a.dx + k.at * X + h * E
    cdef float* w = room
    cdef float* z = room + SQUARE
    cdef float* u = room + 2 * SQUARE
    cdef float* v = u + ROWS * E
    cdef float* wide = v + ROWS * E
    cdef float[ROWS] reads, writes
    cdef float whole = 0
    _weigh_rows(u, x, X, k.p, n, E)
    _scores(z, dy, V * E, u, E, n, E)
    _weights(w, k, scores)
    for t in range(n):
        for i in range(t + 1):
            total[t * ROWS + i] += k.M[t * ROWS + i] * z[t * ROWS + i]
    memset(v, 0, n * E * sizeof(float))
    if k.precedes:
        _product(v, E, _rows(_b(a, k.at, g), n, X), _columns(R, E, E), D, False)
        _scale_rows(v, last, n, E)
    for t in range(n):
        reads[t], writes[t] = 0, dot_(v + t * E, u + t * E, E)
    _add_upper(v, E, w, dy, V * E, n, E)  # v is dU
    for t in range(n):
        at = (k.at + t) * V + h
        a.ddt[at] = dot_(v + t * E, x + t * X, E)
        s.skips[at] = dot_(dy + t * V * E, x + t * X, E)
        for i in range(E):
            dx[t * X + i] = k.p[t] * v[t * E + i] + a.skip[h] * dy[t * V * E + i]
    if k.precedes:
        _scale_rows(u, last, n, E)
        _product(db, X, _rows(u, n, E), _columns_transposed(R, D, E), E, True)
    if k.follows:
        _weigh_rows(v, dy, V * E, k.m, n, E)
        _product(wide, D, _rows(v, n, E), _columns_transposed(S, D, E), E, False)
        for t in range(n):
            reads[t] = dot_(wide + t * D, _c(a, k.at + t, g), D)
            for i in range(D):
                dc[t * X + i] += wide[t * D + i]
    if k.follows and k.precedes:
        whole = k.m[n - 1] * dot_(R, S, D * E)
    _forgotten(s.g + k.at * V + h, V, z, w, reads, writes, whole, n)
    for t in range(n):
        at = (k.at + t) * V + h
        a.ddt[at] = (a.ddt[at] + a.a[h] * s.g[at]) * sigmoid_(a.dt[at] + a.bias[h])


cdef void _chunk_shares(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute shares of the chunks of all sequences and groups, with the heads of each group."""
    cdef Py_ssize_t T = a.T, V = a.V, D = a.D, E = a.E, G = a.G, S = _chunks(a.T), X = a.X
    cdef Py_ssize_t tasks = a.B * S * G, share, task, b, j, g, h, at, n, t
    cdef Scratch s = _scratch_of(a)
    cdef float* scores
    cdef float* total
    cdef float* db
    cdef float* dc
    cdef Chunk k
    for share in range(begin, end):
        scores = s.rooms + share * _backward_room(a)
        total = scores + SQUARE
        for task in range(share * tasks // a.n_threads, (share + 1) * tasks // a.n_threads):
            b, j, g = task // G // S, task // G % S, task % G
            at, n = b * T + j * ROWS, min(<Py_ssize_t>ROWS, T - j * ROWS)
            db = a.dx + at * X + V * E + g * D
            dc = db + G * D
            for t in range(n):
                memset(db + t * X, 0, D * sizeof(float))
                memset(dc + t * X, 0, D * sizeof(float))
            memset(total, 0, SQUARE * sizeof(float))
            _scores(scores, _c(a, at, g), X, _b(a, at, g), X, n, D)
            for h in range(g * V // G, (g + 1) * V // G):
                _read_chunk(&k, a, b, j, T, h)
                _head_backward(
                    a, &k, h, s.S + ((b * V + h) * S + j) * D * E,
                    s.R + ((b * V + h) * S + j) * D * E, scores, total, db, dc,
                    total + SQUARE, &s,
                )
            _add_lower(dc, X, total, _b(a, at, g), X, n, D)
            _add_upper(db, X, total, _c(a, at, g), X, n, D)


cdef void _head_sums(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute da, dbias and dskip of heads, over all rows."""
    cdef Py_ssize_t V = a.V, h, n
    cdef Scratch s = _scratch_of(a)
    cdef float da, dbias, dskip
    for h in range(begin, end):
        da = a.da[h] if a.da != NULL and a.accumulate else 0
        dbias = a.dbias[h] if a.dbias != NULL and a.accumulate else 0
        dskip = a.dskip[h] if a.dskip != NULL and a.accumulate else 0
        for n in range(a.B * a.T):
            da += s.g[n * V + h] * softplus_(a.dt[n * V + h] + a.bias[h])
            dbias += a.ddt[n * V + h]
            dskip += s.skips[n * V + h]
        if a.da != NULL:
            a.da[h] = da
        if a.dbias != NULL:
            a.dbias[h] = dbias
        if a.dskip != NULL:
            a.dskip[h] = dskip


cdef void _backward(Backward* a) noexcept nogil:
    if a.T:
        parallel_for(<part_fn>_state_shares, a, a.n_threads)
    parallel_for(<part_fn>_chunk_shares, a, a.n_threads)
    if a.da != NULL or a.dbias != NULL or a.dskip != NULL:
        parallel_for(<part_fn>_head_sums, a, a.V)


def _heads_fit(where, arrays, sizes, options):
    V, E, G, D = (sizes[name] for name in "VEGD")
    if not (V >= 1 and E >= 1 and G >= 1 and D >= 1 and V % G == 0):
        raise ValueError(
            f"{where}: needs x of V heads of E and 2 G groups of D, G dividing V; got x "
            f"{arrays['x'].shape}: V, E, G, D = {V}, {E}, {G}, {D}"
        )
    if "first" in arrays:
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
    "y[B*T V*E] <- x[B*T V*E+2*G*D] dt[B*T V] a[V 1] bias[V] skip[V 1] i32 first[B*T]? "
    "| B=1 G X=V*E+2*G*D",
    _heads_fit,
)
backward = entry(
    "dx[B*T V*E+2*G*D] ddt[B*T V] da[V 1]?+ dbias[V]?+ dskip[V 1]?+ <- dy[B*T V*E] "
    "x[B*T V*E+2*G*D] dt[B*T V] a[V 1] bias[V] skip[V 1] i32 first[B*T]? | B=1 G X=V*E+2*G*D",
    _heads_fit,
)
cached = entry(
    "y[B*T V*E] state[B V D E]! <- x[B*T V*E+2*G*D] dt[B*T V] a[V 1] bias[V] skip[V 1] "
    "i32 past[B] i32 count[B] | G X=V*E+2*G*D",
    _rows_fit,
)
