"""One block of attention: BLOCK queries against BLOCK keys, forward and backward.

The formulas are at the top of attention.pyx. Pointers are at row 0 of the sequence and at the first
column of the head; i is the first query of a block and j its first key. Keys of a cache are
transposed within blocks: cached_attention.pyx says how, and why.
"""
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, logf

from toynn._kernels._common cimport LANES, exp_, tanh_
from toynn._kernels.gemm._gemm cimport multiply, multiply_panels
from toynn._kernels.gemm._panels cimport (
    KC, NR, PAIRS, Operand, V, aligned, blocks_of, floats_at, pack, panel_floats, panel_start,
    panels, steps, transpose,
)

cdef extern from "rows.h" nogil:
    void lanes_max "tn_lanes_max" (float* most, const float* x, Py_ssize_t n) noexcept
    void lanes_sum "tn_lanes_sum" (float* total, const float* x, Py_ssize_t n) noexcept

cdef enum:
    BLOCK = 64  # queries, and keys, per block: two blocks of scores take 40 KB
    TAIL = 16   # so many at the end, or fewer, are no block of their own
    WIDTH = BLOCK + TAIL  # floats from one row of a block of scores to the next
    STRIP = 32  # rows of a block on the diagonal that are multiplied at once

cdef struct Sizes:
    Py_ssize_t B, T, H, KV, D
    Py_ssize_t S     # keys
    Py_ssize_t past  # keys before that of the first query; causal only
    Py_ssize_t window  # how many keys a query sees, its own the last; 0: all. causal only
    Py_ssize_t hidden  # first keys that no query sees, fewer than BLOCK; not causal only
    Py_ssize_t ldq, ldk, ldv, ldo  # floats from one row to the next
    bint causal
    bint cached  # k[j,d] is at j // BLOCK * BLOCK * D + d * BLOCK + j % BLOCK, and ldk = D
    float scale
    float cap    # of scaled scores; 0: none
    bint sunk    # whether there is a sink
    float sink   # one more score, of a key that has no value
    bint pairs   # factors of products are rounded to bfloat16, and packed in pairs


cdef inline Py_ssize_t tail(const Sizes* s) noexcept nogil:
    """Rows by which a last block may be longer than BLOCK.

    None if causal: there the sums over keys are cut alike whatever comes after them.
    """
    return 0 if s.causal or s.cached else TAIL


cdef inline Py_ssize_t block_count(const Sizes* s, Py_ssize_t rows) noexcept nogil:
    return max(1, blocks_of(rows - tail(s), BLOCK))


cdef inline Py_ssize_t block_size(const Sizes* s, Py_ssize_t i, Py_ssize_t rows) noexcept nogil:
    """Rows of the block that begins at i, of ``rows`` in all."""
    return rows - i if rows - i <= BLOCK + tail(s) else BLOCK


cdef inline Py_ssize_t _whole(Py_ssize_t columns) noexcept nogil:
    """Columns rounded up to LANES, so that loops over them have no scalar rest."""
    return blocks_of(columns, LANES) * LANES


cdef inline void _scale_row(float* x, float factor, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(n):
        x[c] *= factor


cdef inline void _multiply_pairs(
    float* y, Py_ssize_t ldy, const Operand* a, const Operand* b, Py_ssize_t K, bint add
) noexcept nogil:
    """y (+)= a b in pairs: both are packed, a, of at most WIDTH rows, as a whole."""
    cdef float a_buffer[WIDTH * KC]  # pairs take half of this; the last panel is a whole one
    cdef float b_buffer[NR * KC]
    cdef float* a_packed = aligned(a_buffer)
    cdef float* b_packed = aligned(b_buffer)
    cdef Py_ssize_t t, p, q, k, kc, row, rows, step
    for t in range(blocks_of(K, KC)):
        k = t * KC
        kc = min(KC, K - k)
        step = panel_floats(a, kc)
        pack(a_packed, a, 0, panels(a), k, kc)
        for q in range(panels(b)):
            pack(b_packed, b, q, q + 1, k, kc)
            for p in range(panels(a)):
                row = panel_start(a, p)
                rows = panel_start(a, p + 1) - row
                multiply_panels(
                    y + row * ldy + q * NR, ldy, a_packed + p * step, b_packed, rows,
                    min(NR, b.size - q * NR), steps(a, kc), True, add or t > 0,
                )


cdef inline void _multiply(
    float* y, Py_ssize_t ldy, const Sizes* s, Operand a, Operand b, Py_ssize_t K, bint add
) noexcept nogil:
    if s.pairs:
        a.form = b.form = PAIRS
        _multiply_pairs(y, ldy, &a, &b, K, add)
    else:
        multiply(y, ldy, &a, &b, K, add)


cdef inline Py_ssize_t _strip(const Sizes* s, Py_ssize_t i, Py_ssize_t j) noexcept nogil:
    """Rows, or keys, of a block that are multiplied at once: fewer where some keys are not seen."""
    return STRIP if s.causal and s.past + i < j + BLOCK else WIDTH


cdef inline Py_ssize_t _seen(
    const Sizes* s, Py_ssize_t query, Py_ssize_t j, Py_ssize_t columns
) noexcept nogil:
    """How many of the keys j .. j + columns - 1 a query sees."""
    return max(0, min(columns, s.past + query + 1 - j)) if s.causal else columns


cdef inline Py_ssize_t _unseen(
    const Sizes* s, Py_ssize_t query, Py_ssize_t j, Py_ssize_t columns
) noexcept nogil:
    """How many of the keys j .. j + columns - 1 lie before those that a query sees."""
    cdef Py_ssize_t low = s.past + query + 1 - s.window if s.window > 0 else s.hidden
    return max(0, min(columns, low - j))


cdef inline Py_ssize_t first_key(const Sizes* s, Py_ssize_t query) noexcept nogil:
    """Where the first block of keys begins that a query sees any of."""
    return max(0, s.past + query + 1 - s.window) // BLOCK * BLOCK if s.window > 0 else 0


cdef inline Py_ssize_t _reach(
    const Sizes* s, Py_ssize_t i, Py_ssize_t rows, Py_ssize_t r, Py_ssize_t j, Py_ssize_t columns
) noexcept nogil:
    """How many keys j .. the strip of query i + r is multiplied with."""
    cdef Py_ssize_t last = min(rows, (r // STRIP + 1) * STRIP) - 1
    return _seen(s, i + last, j, columns)


cdef inline void _products_of_rows(
    float* p, const Sizes* s, const float* x, Py_ssize_t ldx, const float* y, Py_ssize_t ldy,
    Py_ssize_t i, Py_ssize_t rows, Py_ssize_t j, Py_ssize_t columns,
) noexcept nogil:
    """p = x . y for rows i .. of x and j .. of y, where queries i .. see keys j .. ."""
    cdef Py_ssize_t strip = _strip(s, i, j), t, first, n
    cdef Operand a, b
    for t in range(blocks_of(rows, strip)):
        first = t * strip
        n = min(strip, rows - first)
        a = floats_at(x + (i + first) * ldx, n, ldx, 1, True)
        b = floats_at(
            y + j * ldy, _seen(s, i + first + n - 1, j, columns), 1 if s.cached else ldy,
            BLOCK if s.cached else 1, False,
        )
        _multiply(p + first * WIDTH, WIDTH, s, a, b, s.D, False)


cdef inline void _add_rows(
    float* y, Py_ssize_t ldy, const Sizes* s, const float* p, const float* x, Py_ssize_t ldx,
    Py_ssize_t i, Py_ssize_t rows, Py_ssize_t j, Py_ssize_t columns, bint add,
) noexcept nogil:
    """y (+)= p x: to each query what the keys give that it sees. y is at row i, x at row j."""
    cdef Py_ssize_t strip = _strip(s, i, j), t, first, n
    cdef Operand a, b = floats_at(x, s.D, 1, ldx, False)
    for t in range(blocks_of(rows, strip)):
        first = t * strip
        n = min(strip, rows - first)
        a = floats_at(p + first * WIDTH, n, WIDTH, 1, True)
        _multiply(
            y + first * ldy, ldy, s, a, b, _seen(s, i + first + n - 1, j, columns), add
        )


cdef inline void _add_columns(
    float* y, Py_ssize_t ldy, const Sizes* s, const float* p, const float* x, Py_ssize_t ldx,
    Py_ssize_t i, Py_ssize_t rows, Py_ssize_t j, Py_ssize_t columns, bint add,
) noexcept nogil:
    """y (+)= p^T x: to each key what the queries give that see it. y is at row j, x at row i."""
    cdef Py_ssize_t strip = _strip(s, i, j), t, first, above
    cdef Operand a, b
    for t in range(blocks_of(columns, strip)):
        first = t * strip
        above = max(0, j + first - s.past - i) if s.causal else 0
        a = floats_at(p + above * WIDTH + first, min(strip, columns - first), 1, WIDTH, True)
        b = floats_at(x + above * ldx, s.D, 1, ldx, False)
        _multiply(y + first * ldy, ldy, s, a, b, rows - above, add)


cdef inline void _cap_scores(float* p, float* slope, int n, float scale, float cap) noexcept nogil:
    """p = cap tanh(scale p / cap) of n keys, to a whole register; slope: 1 - tanh^2."""
    cdef int c
    cdef float factor = scale / cap
    for c in range(_whole(n)):
        p[c] = cap * tanh_(factor * p[c], &slope[c])


cdef inline void _multiply_rows(float* x, const float* y, int n) noexcept nogil:
    """x = x y of n keys, to a whole register."""
    cdef int c
    for c in range(_whole(n)):
        x[c] *= y[c]


cdef inline void _hide(float* p, Py_ssize_t n, float value) noexcept nogil:
    """Give the first n keys, which are not seen, a value."""
    cdef Py_ssize_t c
    for c in range(n):
        p[c] = value


cdef inline void _scale_scores(float* p, int seen, int n, float scale) noexcept nogil:
    """p = scale p for keys that are seen, -infinity for others of n, to a whole register."""
    cdef int c  # as wide as a float: a register of them is compared at once
    for c in range(_whole(n)):
        p[c] = scale * p[c] if c < seen else <float>-INFINITY


cdef inline void _weights(float* p, int seen, int n, float scale, float shift) noexcept nogil:
    """p = exp(scale p - shift) for keys that are seen, 0 for others of n, to a whole register."""
    cdef int c
    cdef float weight
    for c in range(_whole(n)):
        weight = exp_(scale * p[c] - shift)
        p[c] = weight if c < seen else <float>0.0


cdef inline void _score_gradients(
    float* ds, const float* p, int seen, int n, float scale, float delta
) noexcept nogil:
    """ds = scale p (ds - delta) for keys that are seen, 0 for others of n, to a whole register."""
    cdef int c
    for c in range(_whole(n)):
        ds[c] = scale * p[c] * (ds[c] - delta) if c < seen else <float>0.0


cdef inline void _by_lane(float* y, const float* x, Py_ssize_t rows) noexcept nogil:
    """y (V, WIDTH) = the transpose of x (rows, V): so many registers hold what V would share."""
    cdef Py_ssize_t r
    for r in range(_whole(rows) // V):
        transpose(y + r * V, WIDTH, x + r * V * V, V, rows - r * V)


cdef inline void forward_block(
    float* o, float* lse, const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i,
) noexcept nogil:
    """Overwrite o and lse of the block of queries that begins at i, from all keys."""
    cdef float p[WIDTH * WIDTH]
    cdef float lanes[WIDTH * V]    # of each row, partial maxima or sums
    cdef float by_lane[V * WIDTH]
    cdef float most[WIDTH]    # running maximum of the scaled scores of a row
    cdef float total[WIDTH]   # running sum of exp(score - most)
    cdef float factor[WIDTH]  # by which both shrink, and o, when the maximum grows
    cdef float slope[WIDTH]   # not used
    cdef Py_ssize_t r, t, j, n, lane, columns, rows = block_size(s, i, s.T)
    cdef Py_ssize_t keys = s.past + i + rows if s.causal else s.S, begin = first_key(s, i)
    cdef bint masked = s.window > 0 or s.hidden > 0
    cdef float x, scale
    for r in range(WIDTH):
        # A row may see none of the first keys that others do: then nothing is a difference of two
        # infinities, and what it has summed up by its first own key is multiplied by 0.
        most[r] = -FLT_MAX if masked else <float>-INFINITY
        total[r] = 0
        if s.sunk:
            most[r] = s.sink
            total[r] = 1
    for t in range(begin // BLOCK, block_count(s, keys)):
        j = t * BLOCK
        columns = block_size(s, j, keys)
        _products_of_rows(p, s, q, s.ldq, k, s.ldk, i, rows, j, columns)
        for r in range(rows):
            n = _reach(s, i, rows, r, j, columns)
            scale = s.scale
            if s.cap > 0:
                _cap_scores(p + r * WIDTH, slope, n, s.scale, s.cap)
                scale = 1
            _scale_scores(p + r * WIDTH, _seen(s, i + r, j, columns), n, scale)
            if masked:
                _hide(p + r * WIDTH, _unseen(s, i + r, j, columns), <float>-INFINITY)
            lanes_max(lanes + r * V, p + r * WIDTH, _whole(n))
        _by_lane(by_lane, lanes, rows)
        for r in range(_whole(rows)):
            x = most[r]
            for lane in range(V):
                x = by_lane[lane * WIDTH + r] if by_lane[lane * WIDTH + r] > x else x
            factor[r] = exp_(most[r] - x)
            most[r] = x
        for r in range(rows):
            n = _reach(s, i, rows, r, j, columns)
            _weights(p + r * WIDTH, _seen(s, i + r, j, columns), n, 1, most[r])
            lanes_sum(lanes + r * V, p + r * WIDTH, _whole(n))
        _by_lane(by_lane, lanes, rows)
        for r in range(_whole(rows)):
            x = 0
            for lane in range(V):
                x += by_lane[lane * WIDTH + r]
            total[r] = total[r] * factor[r] + x
        if j > begin:
            for r in range(rows):
                _scale_row(o + (i + r) * s.ldo, factor[r], s.D)
        _add_rows(
            o + i * s.ldo, s.ldo, s, p, v + j * s.ldv, s.ldv, i, rows, j, columns, j > begin
        )
    for r in range(rows):
        _scale_row(o + (i + r) * s.ldo, 1 / total[r], s.D)
        lse[i + r] = most[r] + logf(total[r])


cdef inline void backward_block(
    float* dq, float* dk, float* dv, const float* delta, const float* do, const float* lse,
    const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i, Py_ssize_t j, bint add_to_keys,
) noexcept nogil:
    """What queries i .. and keys j .. give to dq, dk and dv; the first keys overwrite dq.

    Of dq, dk and dv any may be NULL: what only they need is not computed.
    """
    cdef float p[WIDTH * WIDTH]
    cdef float ds[WIDTH * WIDTH]
    cdef float slope[WIDTH]
    cdef Py_ssize_t r, n, seen, unseen, rows = block_size(s, i, s.T)
    cdef Py_ssize_t columns = block_size(s, j, s.T)
    cdef bint scored = dq != NULL or dk != NULL  # dv needs the weights alone
    _products_of_rows(p, s, q, s.ldq, k, s.ldk, i, rows, j, columns)
    if scored:
        _products_of_rows(ds, s, do, s.ldo, v, s.ldv, i, rows, j, columns)  # do . v, then ds
    for r in range(rows):
        seen = _seen(s, i + r, j, columns)
        n = _reach(s, i, rows, r, j, columns)
        if s.cap > 0:
            _cap_scores(p + r * WIDTH, slope, n, s.scale, s.cap)
            _weights(p + r * WIDTH, seen, n, 1, lse[i + r])
        else:
            _weights(p + r * WIDTH, seen, n, s.scale, lse[i + r])
        unseen = _unseen(s, i + r, j, columns) if s.window > 0 else 0
        _hide(p + r * WIDTH, unseen, 0)
        if scored:
            _score_gradients(ds + r * WIDTH, p + r * WIDTH, seen, n, s.scale, delta[i + r])
            if s.cap > 0:
                _multiply_rows(ds + r * WIDTH, slope, n)
            _hide(ds + r * WIDTH, unseen, 0)
    if dv != NULL:  # dv += p^T do
        _add_columns(
            dv + j * s.ldv, s.ldv, s, p, do + i * s.ldo, s.ldo, i, rows, j, columns, add_to_keys
        )
    if dk != NULL:  # dk += ds^T q
        _add_columns(
            dk + j * s.ldk, s.ldk, s, ds, q + i * s.ldq, s.ldq, i, rows, j, columns, add_to_keys
        )
    if dq != NULL:  # dq += ds k
        _add_rows(
            dq + i * s.ldq, s.ldq, s, ds, k + j * s.ldk, s.ldk, i, rows, j, columns,
            j > first_key(s, i),
        )
