"""One block of attention: BLOCK queries against BLOCK keys, forward and backward.

The formulas are at the top of attention.pyx, a drawing of blocks and strips is at the top of
_visible.pxd. Pointers point to row 0 of the sequence and the first column of the head. Keys of a
cache are transposed within blocks: cached_attention.pyx says how, and why.
"""
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, logf

from toynn._kernels.base._common cimport LANES, exp_, tanh_
from toynn._kernels.attention._visible cimport (
    BLOCK, WIDTH, Block, Sizes, block_size, first_key, key_blocks, strip_end, strip_size,
    visible_begin, visible_end,
)
from toynn._kernels.gemm._gemm cimport multiply
from toynn._kernels.gemm._loops cimport multiply_panels
from toynn._kernels.gemm._product cimport (
    KC, NR, Operand, V, aligned, blocks_of, floats_at, pack, pack_as, panel_floats, panel_start,
    steps,
)

cdef extern from "gemm.h" nogil:
    void transpose "tn_transpose" (
        float* y, Py_ssize_t y_k, const float* x, Py_ssize_t x_row, Py_ssize_t rows
    ) noexcept

cdef extern from "rows.h" nogil:
    void lanes_max "tn_lanes_max" (float* most, const float* x, Py_ssize_t n) noexcept
    void lanes_sum "tn_lanes_sum" (float* total, const float* x, Py_ssize_t n) noexcept


cdef inline Py_ssize_t _whole(Py_ssize_t columns) noexcept nogil:
    """Columns rounded up to LANES, so that loops over them have no scalar remainder."""
    return blocks_of(columns, LANES) * LANES


cdef inline void _scale_row(float* x, float factor, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(n):
        x[c] *= factor


cdef inline void _multiply_packed(
    float* y, Py_ssize_t ldy, const Operand* a, const Operand* b, Py_ssize_t K, bint add
) noexcept nogil:
    """y (+)= a b, both packed; the rows of a (at most WIDTH) all at once."""
    cdef float a_buffer[WIDTH * KC]  # pairs take half of this; the last panel is a whole one
    cdef float b_buffer[NR * KC]
    cdef float* a_packed = aligned(a_buffer)
    cdef float* b_packed = aligned(b_buffer)
    cdef Py_ssize_t t, p, q, k, kc, row, rows, step
    for t in range(blocks_of(K, KC)):
        k = t * KC
        kc = min(KC, K - k)
        step = panel_floats(a, kc)
        pack(a_packed, a, 0, a.panels, k, kc)
        for q in range(b.panels):
            pack(b_packed, b, q, q + 1, k, kc)
            for p in range(a.panels):
                row = panel_start(a, p)
                rows = panel_start(a, p + 1) - row
                multiply_panels(
                    a.form, y + row * ldy + q * NR, ldy, a_packed + p * step, b_packed, rows,
                    min(NR, b.size - q * NR), steps(a, kc), add or t > 0,
                )


cdef inline void _multiply(
    float* y, Py_ssize_t ldy, const Sizes* s, Operand a, Operand b, Py_ssize_t K, bint add
) noexcept nogil:
    if s.rounded == NULL:
        multiply(y, ldy, &a, &b, K, add)
        return
    pack_as(&a, s.rounded)
    pack_as(&b, s.rounded)
    _multiply_packed(y, ldy, &a, &b, K, add)


cdef inline void _products_of_rows(
    float* p, const Sizes* s, const Block* b, const float* x, Py_ssize_t ldx, const float* y,
    Py_ssize_t ldy, Py_ssize_t width,
) noexcept nogil:
    """p = x . y for the block's rows of x (one per query) and of y (one per key)."""
    cdef Py_ssize_t strip = strip_size(s, b), t, first, n
    cdef Operand queries, keys
    for t in range(blocks_of(b.rows, strip)):
        first = t * strip
        n = min(strip, b.rows - first)
        queries = floats_at(x + (b.i + first) * ldx, n, ldx, 1, True)
        keys = floats_at(
            y + b.j * ldy, strip_end(s, b, first), 1 if s.cached else ldy,
            BLOCK if s.cached else 1, False,
        )
        _multiply(p + first * WIDTH, WIDTH, s, queries, keys, width, False)


cdef inline void _add_rows(
    float* y, Py_ssize_t ldy, const Sizes* s, const Block* b, const float* p, const float* x,
    Py_ssize_t ldx, Py_ssize_t width, bint shared, bint add,
) noexcept nogil:
    """y (+)= p x: add to each query what its visible keys give. shared: x is a cache of keys."""
    cdef Py_ssize_t strip = strip_size(s, b), t, first
    cdef Operand weights, keys = floats_at(
        x + b.j * ldx, width, BLOCK if shared else 1, 1 if shared else ldx, False
    )
    for t in range(blocks_of(b.rows, strip)):
        first = t * strip
        weights = floats_at(p + first * WIDTH, min(strip, b.rows - first), WIDTH, 1, True)
        _multiply(
            y + (b.i + first) * ldy, ldy, s, weights, keys, strip_end(s, b, first), add
        )


cdef inline void _add_columns(
    float* y, Py_ssize_t ldy, const Sizes* s, const Block* b, const float* p, const float* x,
    Py_ssize_t ldx, Py_ssize_t width, bint add,
) noexcept nogil:
    """y (+)= p^T x: add to each key what the queries that see it give."""
    cdef Py_ssize_t strip = strip_size(s, b), t, first, above
    cdef Operand weights, queries
    for t in range(blocks_of(b.columns, strip)):
        first = t * strip
        above = max(0, b.j + first - s.past - b.i) if s.causal else 0  # rows that see no such key
        weights = floats_at(
            p + above * WIDTH + first, min(strip, b.columns - first), 1, WIDTH, True
        )
        queries = floats_at(x + (b.i + above) * ldx, width, 1, ldx, False)
        _multiply(y + (b.j + first) * ldy, ldy, s, weights, queries, b.rows - above, add)


cdef inline void _cap_scores(float* p, float* slope, int n, float scale, float cap) noexcept nogil:
    """p = cap tanh(scale p / cap) for n keys, rounded up to registers; slope = 1 - tanh^2."""
    cdef int c
    cdef float factor = scale / cap
    for c in range(_whole(n)):
        p[c] = cap * tanh_(factor * p[c], &slope[c])


cdef inline void _multiply_rows(float* x, const float* y, int n) noexcept nogil:
    """x = x y for n keys, rounded up to whole registers."""
    cdef int c
    for c in range(_whole(n)):
        x[c] *= y[c]


cdef inline void _hide(float* p, Py_ssize_t n, float value) noexcept nogil:
    """Set the scores or weights of the first n keys, which are not visible, to a value."""
    cdef Py_ssize_t c
    for c in range(n):
        p[c] = value


cdef inline void _scale_scores(float* p, int seen, int n, float scale) noexcept nogil:
    """p = scale p for visible keys, else -infinity; n keys, rounded up to whole registers."""
    cdef int c  # as wide as a float, so that whole registers are compared
    for c in range(_whole(n)):
        p[c] = scale * p[c] if c < seen else <float>-INFINITY


cdef inline void _weights(float* p, int seen, int n, float scale, float shift) noexcept nogil:
    """p = exp(scale p - shift) for visible keys, else 0; n keys, rounded up to whole registers."""
    cdef int c
    cdef float weight
    for c in range(_whole(n)):
        weight = exp_(scale * p[c] - shift)
        p[c] = weight if c < seen else <float>0.0


cdef inline void _score_gradients(
    float* ds, const float* p, int seen, int n, float scale, float delta
) noexcept nogil:
    """ds = scale p (ds - delta) for visible keys, else 0; n keys, rounded up to registers."""
    cdef int c
    for c in range(_whole(n)):
        ds[c] = scale * p[c] * (ds[c] - delta) if c < seen else <float>0.0


cdef inline void _by_lane(float* y, const float* x, Py_ssize_t rows) noexcept nogil:
    """y (V, WIDTH) = the transpose of x (rows, V). Then a sum over V is a sum of registers."""
    cdef Py_ssize_t r
    for r in range(_whole(rows) // V):
        transpose(y + r * V, WIDTH, x + r * V * V, V, rows - r * V)


cdef inline void forward_block(
    float* o, float* lse, const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i,
) noexcept nogil:
    """Overwrite o and lse of the block of queries that begins at i, from all keys."""
    cdef float p[WIDTH * WIDTH]
    cdef float lanes[WIDTH * V]    # partial maxima or sums of each row
    cdef float by_lane[V * WIDTH]
    cdef float most[WIDTH]    # running maximum of the scaled scores of a row
    cdef float total[WIDTH]   # running sum of exp(score - most)
    cdef float factor[WIDTH]  # by which total and o shrink when the maximum grows
    cdef float slope[WIDTH]   # not used
    cdef Py_ssize_t r, t, n, lane, rows = block_size(s, i, s.T)
    cdef Py_ssize_t keys = s.past + i + rows if s.causal else s.S, begin = first_key(s, i)
    cdef Block b
    cdef bint masked = s.window > 0 or s.hidden > 0
    cdef float x, scale
    cdef float* row
    for r in range(WIDTH):
        # A row may see none of the first keys that other rows see. With -FLT_MAX no difference of
        # two infinities arises then, and its first visible key multiplies what came before by 0.
        most[r] = -FLT_MAX if masked else <float>-INFINITY
        total[r] = 0
        if s.sink != NULL:
            most[r] = s.sink[0]
            total[r] = 1
    for t in range(begin // BLOCK, key_blocks(s, i, rows)):
        b = Block(i, rows, t * BLOCK, block_size(s, t * BLOCK, keys))
        _products_of_rows(p, s, &b, q, s.ldq, k, s.ldk, s.D)
        for r in range(rows):
            row = p + r * WIDTH
            n = strip_end(s, &b, r)
            scale = s.scale
            if s.cap > 0:
                _cap_scores(row, slope, n, s.scale, s.cap)
                scale = 1
            _scale_scores(row, visible_end(s, &b, r), n, scale)
            if masked:
                _hide(row, visible_begin(s, &b, r), <float>-INFINITY)
            lanes_max(lanes + r * V, row, _whole(n))
        _by_lane(by_lane, lanes, rows)
        for r in range(_whole(rows)):
            x = most[r]
            for lane in range(V):
                x = by_lane[lane * WIDTH + r] if by_lane[lane * WIDTH + r] > x else x
            factor[r] = exp_(most[r] - x)
            most[r] = x
        for r in range(rows):
            row = p + r * WIDTH
            n = strip_end(s, &b, r)
            _weights(row, visible_end(s, &b, r), n, 1, most[r])
            lanes_sum(lanes + r * V, row, _whole(n))
        _by_lane(by_lane, lanes, rows)
        for r in range(_whole(rows)):
            x = 0
            for lane in range(V):
                x += by_lane[lane * WIDTH + r]
            total[r] = total[r] * factor[r] + x
        if b.j > begin:
            for r in range(rows):
                _scale_row(o + (i + r) * s.ldo, factor[r], s.E)
        _add_rows(o, s.ldo, s, &b, p, v, s.ldv, s.E, s.shared, b.j > begin)
    for r in range(rows):
        _scale_row(o + (i + r) * s.ldo, 1 / total[r], s.E)
        lse[i + r] = most[r] + logf(total[r])


cdef inline void backward_block(
    float* dq, float* dk, float* dv, const float* delta, const float* do, const float* lse,
    const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i, Py_ssize_t j, bint add_to_keys,
) noexcept nogil:
    """Add to dq, dk and dv what queries i .. and keys j .. give.

    The first block of keys overwrites dq. dk and dv are overwritten unless add_to_keys is set. Each
    of the three may be NULL: then it is not computed.
    """
    cdef float scores[WIDTH * WIDTH]
    cdef float gradients[WIDTH * WIDTH]
    cdef float slope[WIDTH]
    cdef Py_ssize_t r, n, end, begin
    cdef Block b = Block(i, block_size(s, i, s.T), j, block_size(s, j, s.T))
    cdef bint scored = dq != NULL or dk != NULL  # dv needs only the weights
    cdef float* p
    cdef float* ds
    _products_of_rows(scores, s, &b, q, s.ldq, k, s.ldk, s.D)
    if scored:
        _products_of_rows(gradients, s, &b, do, s.ldo, v, s.ldv, s.E)  # do . v, then ds
    for r in range(b.rows):
        p, ds = scores + r * WIDTH, gradients + r * WIDTH
        begin = visible_begin(s, &b, r)
        end, n = visible_end(s, &b, r), strip_end(s, &b, r)
        if s.cap > 0:
            _cap_scores(p, slope, n, s.scale, s.cap)
        _weights(p, end, n, 1 if s.cap > 0 else s.scale, lse[i + r])
        _hide(p, begin, 0)
        if scored:
            _score_gradients(ds, p, end, n, s.scale, delta[i + r])
            if s.cap > 0:
                _multiply_rows(ds, slope, n)
            _hide(ds, begin, 0)
    if dv != NULL:  # dv += p^T do
        _add_columns(dv, s.ldv, s, &b, scores, do, s.ldo, s.E, add_to_keys)
    if dk != NULL:  # dk += ds^T q
        _add_columns(dk, s.ldk, s, &b, gradients, q, s.ldq, s.D, add_to_keys)
    if dq != NULL:  # dq += ds k
        _add_rows(dq, s.ldq, s, &b, gradients, k, s.ldk, s.D, False, j > first_key(s, i))
