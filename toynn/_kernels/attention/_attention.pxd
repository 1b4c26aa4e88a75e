"""One block of attention: BLOCK queries against BLOCK keys, forward and backward.

The formulas are at the top of attention.pyx, a drawing of blocks and strips is at the top of
_visible.pxd. Pointers point to row 0 of the sequence and the first column of the head. Keys of a
cache are transposed within blocks: cached_attention.pyx says how, and why.
"""
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY
from libc.string cimport memset

from toynn._kernels.base._common cimport LANES, exp_, log_, tanh_
from toynn._kernels.attention._visible cimport (
    BLOCK, WIDTH, Block, Sizes, block_size, first_key, key_blocks, strip_end, strip_size,
    visible_begin, visible_end,
)
from toynn._kernels.gemm._gemm cimport copy_tile, multiply_kept
from toynn._kernels.gemm._loops cimport multiply_panels
from toynn._kernels.gemm._product cimport (
    FLOATS, Form, KC, LINE, MR, NR, Operand, V, aligned, blocks_of, floats_at, pack, pack_as,
    panel_floats, panel_start, resize, steps,
)

cdef extern from "gemm.h" nogil:
    void transpose "tn_transpose" (
        float* y, Py_ssize_t y_k, const float* x, Py_ssize_t x_row, Py_ssize_t rows
    ) noexcept

cdef enum:
    STRIPPED = BLOCK * KC  # most floats of a side that is packed for the strips of one block

cdef extern from "rows.h" nogil:
    bint HAS_WEIGHTS "TN_HAS_WEIGHTS"
    void lanes_max "tn_lanes_max" (float* most, const float* x, Py_ssize_t n) noexcept
    void row_weights "tn_weights" (
        float* total, float factor, float* p, Py_ssize_t seen, Py_ssize_t n, float scale,
        float shift, bint exact
    ) noexcept


cdef inline Py_ssize_t _whole(Py_ssize_t columns) noexcept nogil:
    """Columns rounded up to LANES, so that loops over them have no scalar remainder."""
    return blocks_of(columns, LANES) * LANES


cdef inline void _scale_row(float* y, const float* x, float factor, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(n):
        y[c] = factor * x[c]


cdef struct Rows:    # q, k, v or do of one head, from row 0 of a sequence on
    const float* x
    Py_ssize_t ld, width

cdef struct Panels:  # a side of products, packed once for several of them; NULL: it is not
    const float* at
    Py_ssize_t step  # floats from one panel to the next

cdef struct Kept:    # a block of rows
    Panels along   # sums run along the rows: scores, and do . v
    Panels across  # sums run over the rows: o, dq, dk, dv

cdef struct Sums:    # what is added to a block of rows, from its first row on
    float* y       # NULL: it is not wanted
    Py_ssize_t ld


cdef inline const Form* _form(const Sizes* s) noexcept nogil:
    return FLOATS if s.rounded == NULL else s.rounded


cdef inline Panels _keep(float** room, const Sizes* s, Operand side, Py_ssize_t K) noexcept nogil:
    """Pack all K terms of a side (up to KC), and take the room that this needs."""
    cdef float* y = room[0]
    pack_as(&side, _form(s))
    pack(y, &side, 0, side.panels, 0, K)
    room[0] += side.panels * panel_floats(&side, K)
    return Panels(y, panel_floats(&side, K))


cdef inline Panels keep_along(
    float** room, const Sizes* s, const Rows* y, Py_ssize_t i, Py_ssize_t n, bint is_a
) noexcept nogil:
    """Pack n rows from row i on, as rows of scores if is_a, else as columns of scores."""
    return _keep(room, s, floats_at(y.x + i * y.ld, n, y.ld, 1, is_a), y.width)


cdef inline Panels keep_across(
    float** room, const Sizes* s, const Rows* y, Py_ssize_t i, Py_ssize_t n
) noexcept nogil:
    """Pack n rows from row i on, as terms of sums."""
    return _keep(room, s, floats_at(y.x + i * y.ld, y.width, 1, y.ld, False), n)


cdef inline Py_ssize_t kept_floats(const Sizes* s, Py_ssize_t width) noexcept nogil:
    """The most floats that a block of rows of this width takes, packed along and across."""
    cdef Operand a = floats_at(NULL, WIDTH, width, 1, True)
    cdef Operand b = floats_at(NULL, WIDTH, width, 1, False)
    cdef Operand across = floats_at(NULL, width, 1, width, False)
    pack_as(&a, _form(s))
    pack_as(&b, _form(s))
    pack_as(&across, _form(s))
    return across.panels * panel_floats(&across, WIDTH) + max(
        a.panels * panel_floats(&a, width), b.panels * panel_floats(&b, width)
    )


cdef inline void _multiply_packed(
    float* y, Py_ssize_t ldy, const Operand* a, const float* a_kept, const Operand* b,
    const Panels* b_kept, Py_ssize_t K, bint add,
) noexcept nogil:
    """y (+)= a b, both packed; the rows of a (at most WIDTH) all at once."""
    cdef float a_buffer[WIDTH * KC]  # pairs take half of this; the last panel is a whole one
    cdef float b_buffer[NR * KC]
    cdef float* a_packed = aligned(a_buffer)
    cdef float* b_packed = aligned(b_buffer)
    cdef const float* a_panels = a_packed if a_kept == NULL else a_kept
    cdef const float* b_panel = b_packed
    cdef Py_ssize_t t, p, q, k, kc, row, rows, step
    for t in range(blocks_of(K, KC)):
        k = t * KC
        kc = min(KC, K - k)
        step = panel_floats(a, kc)
        if a_kept == NULL:
            pack(a_packed, a, 0, a.panels, k, kc)
        for q in range(b.panels):
            if b_kept.at != NULL:
                b_panel = b_kept.at + q * b_kept.step
            else:
                pack(b_packed, b, q, q + 1, k, kc)
            for p in range(a.panels):
                row = panel_start(a, p)
                rows = panel_start(a, p + 1) - row
                multiply_panels(
                    a.form, y + row * ldy + q * NR, ldy, a_panels + p * step, b_panel, rows,
                    min(NR, b.size - q * NR), steps(a, kc), add or t > 0,
                )


cdef inline void _multiply(
    float* y, Py_ssize_t ldy, const Sizes* s, Operand a, const float* a_kept, Operand b,
    const Panels* b_kept, Py_ssize_t K, bint add,
) noexcept nogil:
    """y (+)= a b; the panels of a are packed already, unless NULL; likewise those of b."""
    if s.rounded == NULL:
        multiply_kept(y, ldy, &a, a_kept, &b, b_kept.at, b_kept.step, K, add)
        return
    pack_as(&a, s.rounded)
    pack_as(&b, s.rounded)
    _multiply_packed(y, ldy, &a, a_kept, &b, b_kept, K, add)


cdef inline bint _in_place(const Sizes* s) noexcept nogil:
    """Whether weights are multiplied where they are, rounded but not packed."""
    return s.rounded != NULL and s.rounded.multiply_rounded != NULL


cdef inline void _multiply_rounded(
    float* y, Py_ssize_t ldy, const Sizes* s, const float* a, Py_ssize_t rows, Py_ssize_t a_row,
    Py_ssize_t a_k, Operand b, const Panels* b_kept, Py_ssize_t K, bint add,
) noexcept nogil:
    """y (+)= a b, where a is rounded already, and its rows and steps are so far apart."""
    cdef float buffer[NR * KC]
    cdef float tile[MR * NR]
    cdef float* packed = aligned(buffer)
    cdef const float* panel = packed
    cdef Py_ssize_t p, q, row, n, columns, panels = blocks_of(rows, MR)
    pack_as(&b, s.rounded)
    for q in range(b.panels):
        columns = min(NR, b.size - q * NR)
        if b_kept.at != NULL:
            panel = b_kept.at + q * b_kept.step
        else:
            pack(packed, &b, q, q + 1, 0, K)
        for p in range(panels):
            row = p * rows // panels
            n = (p + 1) * rows // panels - row
            if columns == NR:
                s.rounded.multiply_rounded(
                    n, steps(&b, K), a + row * a_row, a_row, a_k, panel, y + row * ldy + q * NR,
                    ldy, add,
                )
                continue
            s.rounded.multiply_rounded(
                n, steps(&b, K), a + row * a_row, a_row, a_k, panel, tile, NR, False
            )
            copy_tile(y + row * ldy + q * NR, ldy, tile, NR, n, columns, add)


cdef inline Panels _panels(
    float* room, const Panels* kept, const Sizes* s, Operand side, Py_ssize_t K, bint several
) noexcept nogil:
    """A side of products: packed once here, if it is not kept and several strips read it."""
    if kept.at != NULL or not several or K > KC:
        return kept[0]
    pack_as(&side, _form(s))
    return kept[0] if side.panels * panel_floats(&side, K) > STRIPPED else _keep(&room, s, side, K)


cdef inline void _products_of_rows(
    float* p, const Sizes* s, const Block* b, const float* x, Py_ssize_t ldx, const Panels* x_kept,
    const float* y, Py_ssize_t ldy, const Panels* y_kept, Py_ssize_t width,
) noexcept nogil:
    """p = x . y for the block's rows of x (one per query) and of y (one per key)."""
    cdef float buffer[STRIPPED + LINE]
    cdef Py_ssize_t strip = strip_size(s, b), t, first, n
    cdef Operand queries, keys = floats_at(
        y + b.j * ldy, b.columns, 1 if s.cached else ldy, BLOCK if s.cached else 1, False
    )
    cdef Panels kept = _panels(
        aligned(buffer), y_kept, s, keys, width, strip < b.rows and not s.cached
    )
    for t in range(blocks_of(b.rows, strip)):
        first = t * strip
        n = min(strip, b.rows - first)
        queries = floats_at(x + (b.i + first) * ldx, n, ldx, 1, True)
        resize(&keys, strip_end(s, b, first))
        _multiply(
            p + first * WIDTH, WIDTH, s, queries, x_kept.at if n == b.rows else NULL, keys, &kept,
            width, False,
        )


cdef inline void _add_rows(
    Sums y, const Sizes* s, const Block* b, const float* p, const float* x, Py_ssize_t ldx,
    const Panels* x_kept, Py_ssize_t width, bint shared, bint add,
) noexcept nogil:
    """y (+)= p x: add to each query what its visible keys give. shared: x is a cache of keys.

    If products are in place, p is rounded along its rows.
    """
    cdef float buffer[STRIPPED + LINE]
    cdef Py_ssize_t strip = strip_size(s, b), t, first, n
    cdef Operand weights, keys = floats_at(
        x + b.j * ldx, width, BLOCK if shared else 1, 1 if shared else ldx, False
    )
    cdef Panels kept = _panels(
        aligned(buffer), x_kept, s, keys, b.columns, strip < b.rows and s.rounded != NULL
    )
    for t in range(blocks_of(b.rows, strip)):
        first = t * strip
        n = min(strip, b.rows - first)
        if _in_place(s):
            _multiply_rounded(
                y.y + first * y.ld, y.ld, s, p + first * WIDTH, n, WIDTH, 1, keys, &kept,
                strip_end(s, b, first), add,
            )
            continue
        weights = floats_at(p + first * WIDTH, n, WIDTH, 1, True)
        _multiply(
            y.y + first * y.ld, y.ld, s, weights, NULL, keys, &kept, strip_end(s, b, first), add
        )


cdef inline void _add_columns(
    Sums y, const Sizes* s, const Block* b, const float* p, const float* x, Py_ssize_t ldx,
    const Panels* x_kept, Py_ssize_t width, bint add,
) noexcept nogil:
    """y (+)= p^T x: add to each key what the queries that see it give.

    If products are in place, p is rounded across its rows.
    """
    cdef float buffer[STRIPPED + LINE]
    cdef Py_ssize_t strip = strip_size(s, b), t, first, n, above
    cdef Operand weights, queries = floats_at(x + b.i * ldx, width, 1, ldx, False)
    cdef Panels kept = _panels(
        aligned(buffer), x_kept, s, queries, b.rows, strip < b.columns and s.rounded != NULL
    ), below
    for t in range(blocks_of(b.columns, strip)):
        first = t * strip
        above = max(0, b.j + first - s.past - b.i) if s.causal else 0  # rows that see no such key
        n = min(strip, b.columns - first)
        queries.x = x + (b.i + above) * ldx
        below = kept
        if kept.at != NULL:
            below.at += above // _form(s).terms * _form(s).b.step
        if _in_place(s):
            _multiply_rounded(
                y.y + first * y.ld, y.ld, s, p + above // s.rounded.terms * WIDTH + first, n, 1,
                WIDTH, queries, &below, b.rows - above, add,
            )
            continue
        weights = floats_at(p + above * WIDTH + first, n, 1, WIDTH, True)
        _multiply(
            y.y + first * y.ld, y.ld, s, weights, NULL, queries, &below, b.rows - above, add,
        )


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


cdef inline void _weights(
    float* total, float factor, float* p, int seen, int n, float scale, float shift, bint exact
) noexcept nogil:
    """p = exp(scale p - shift) for visible keys, else 0; n keys, rounded up to whole registers.

    total, in V lanes, is multiplied by the factor, and the weights are added to it.
    """
    cdef int c  # as wide as a float, so that whole registers are compared
    cdef float weight
    if HAS_WEIGHTS:
        row_weights(total, factor, p, seen, _whole(n), scale, shift, exact)
        return
    for c in range(V):
        total[c] *= factor
    for c in range(_whole(n)):
        weight = exp_(scale * p[c] - shift)
        p[c] = weight if c < seen else <float>0.0
        total[c % V] += p[c]


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


cdef struct Unit:  # a block of queries of one head, while blocks of keys pass by
    float* o
    float* lse
    const float* q
    const float* sink
    Py_ssize_t i
    Kept kept
    Sums sums           # o before it is divided
    float most[WIDTH]       # running maximum of the scaled scores of a row
    float total[WIDTH * V]  # running sum of exp(score - most), in V lanes


cdef inline Py_ssize_t keys_of(const Sizes* s, Py_ssize_t i) noexcept nogil:
    """The key after the last one that any query of the block at i sees."""
    return s.past + i + block_size(s, i, s.T) if s.causal else s.S


cdef inline Py_ssize_t blocks_seen(const Sizes* s, Py_ssize_t i) noexcept nogil:
    """The block of keys after the last one that any query of the block at i sees."""
    return key_blocks(s, i, block_size(s, i, s.T))


cdef inline bint _masked(const Sizes* s) noexcept nogil:
    return s.window > 0 or s.hidden > 0


cdef inline void begin_unit(Unit* u, const Sizes* s) noexcept nogil:
    """Begin without keys, and with sums in o."""
    cdef Py_ssize_t r
    u.sums = Sums(u.o + u.i * s.ldo, s.ldo)
    memset(u.total, 0, sizeof(u.total))
    for r in range(WIDTH):
        # A row may see none of the first keys that other rows see. With -FLT_MAX no difference of
        # two infinities arises then, and its first visible key multiplies what came before by 0.
        u.most[r] = -FLT_MAX if _masked(s) else <float>-INFINITY
        if u.sink != NULL:
            u.most[r] = u.sink[0]
            u.total[r * V] = 1


cdef inline void add_keys(
    Unit* u, const Sizes* s, const float* k, const float* v, const Kept* k_kept,
    const Kept* v_kept, Py_ssize_t j,
) noexcept nogil:
    """Add to a block of queries what the block of keys at j gives."""
    cdef float buffer[WIDTH * WIDTH + LINE]
    cdef float* p = aligned(buffer)
    cdef float lanes[WIDTH * V]  # partial maxima of each row
    cdef float by_lane[V * WIDTH]
    cdef float factor[WIDTH]  # by which total and o shrink when the maximum grows
    cdef float slope[WIDTH]   # not used
    cdef Py_ssize_t i = u.i, r, n, seen, lane, rows = block_size(s, i, s.T)
    cdef Block b = Block(i, rows, j, block_size(s, j, keys_of(s, i)))
    cdef bint first = j <= first_key(s, i), masked = _masked(s)
    cdef bint hidden = masked or strip_size(s, &b) < WIDTH or _whole(b.columns) > b.columns
    # Scores are scaled with their exponential, if that does not change which is largest.
    cdef float x, most, scale = s.scale if s.cap <= 0 and s.scale > 0 else 1
    cdef float* row
    _products_of_rows(p, s, &b, u.q, s.ldq, &u.kept.along, k, s.ldk, &k_kept.along, s.D)
    for r in range(rows):
        row = p + r * WIDTH
        n = seen = b.columns
        if hidden:
            n, seen = strip_end(s, &b, r), visible_end(s, &b, r)
        if s.cap > 0:
            _cap_scores(row, slope, n, s.scale, s.cap)
        elif s.scale <= 0:
            _scale_row(row, row, s.scale, n)
        if masked:
            _hide(row, visible_begin(s, &b, r), <float>-INFINITY)
        lanes_max(lanes + r * V, row, seen)
    _by_lane(by_lane, lanes, rows)
    for r in range(_whole(rows)):
        x = u.most[r]
        for lane in range(V):
            most = scale * by_lane[lane * WIDTH + r]
            x = most if most > x else x
        factor[r] = exp_(u.most[r] - x)
        u.most[r] = x
    for r in range(rows):
        n = seen = b.columns
        if hidden:
            n, seen = strip_end(s, &b, r), visible_end(s, &b, r)
        _weights(
            u.total + r * V, factor[r], p + r * WIDTH, seen, n, scale, u.most[r],
            s.rounded == NULL,
        )
    if not first:
        for r in range(rows):
            if factor[r] != 1:  # most rows' maximum stays, from some keys on
                row = u.sums.y + r * u.sums.ld
                _scale_row(row, row, factor[r], s.E)
    if _in_place(s):
        s.rounded.round(p, p, WIDTH, rows, b.columns, False)
    _add_rows(u.sums, s, &b, p, v, s.ldv, &v_kept.across, s.E, s.shared, not first)


cdef inline void end_unit(Unit* u, const Sizes* s) noexcept nogil:
    """Divide by the sums: o and lse of the block are complete."""
    cdef float by_lane[V * WIDTH]
    cdef float total[WIDTH]
    cdef float lse[WIDTH]
    cdef Py_ssize_t r, lane, rows = block_size(s, u.i, s.T)
    _by_lane(by_lane, u.total, rows)
    for r in range(_whole(rows)):
        total[r] = 0
        for lane in range(V):
            total[r] += by_lane[lane * WIDTH + r]
        lse[r] = u.most[r] + log_(total[r])
    for r in range(rows):
        _scale_row(u.o + (u.i + r) * s.ldo, u.sums.y + r * u.sums.ld, 1 / total[r], s.E)
        u.lse[u.i + r] = lse[r]


cdef inline void forward_block(
    float* o, float* lse, const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i,
) noexcept nogil:
    """Overwrite o and lse of the block of queries that begins at i, from all keys."""
    cdef Unit u
    cdef Kept none
    cdef Py_ssize_t t
    memset(&none, 0, sizeof(Kept))
    u.o, u.lse, u.q, u.sink, u.i, u.kept = o, lse, q, s.sink, i, none
    begin_unit(&u, s)
    for t in range(first_key(s, i) // BLOCK, blocks_seen(s, i)):
        add_keys(&u, s, k, v, &none, &none, t * BLOCK)
    end_unit(&u, s)


cdef inline void backward_block(
    Sums dq, Sums dk, Sums dv, const float* delta, const float* do, const float* lse,
    const float* q, const float* k, const float* v, const Kept* q_kept, const Kept* k_kept,
    const Kept* v_kept, const Kept* do_kept, const Sizes* s, Py_ssize_t i, Py_ssize_t j,
    bint add_to_keys,
) noexcept nogil:
    """Add to dq, dk and dv what queries i .. and keys j .. give.

    The first block of keys overwrites dq. dk and dv are overwritten unless add_to_keys is set. Each
    of the three may be NULL: then it is not computed.
    """
    cdef float buffer[2 * WIDTH * WIDTH + LINE]
    cdef float* scores = aligned(buffer)
    cdef float* gradients = scores + WIDTH * WIDTH
    cdef float slope[WIDTH]
    cdef float total[V]  # not used
    cdef Py_ssize_t r, n, end, begin
    cdef Block b = Block(i, block_size(s, i, s.T), j, block_size(s, j, s.T))
    cdef bint scored = dq.y != NULL or dk.y != NULL  # dv needs only the weights
    cdef float scale
    cdef float* p
    cdef float* ds
    memset(total, 0, sizeof(total))
    _products_of_rows(scores, s, &b, q, s.ldq, &q_kept.along, k, s.ldk, &k_kept.along, s.D)
    if scored:
        _products_of_rows(  # do . v, then ds
            gradients, s, &b, do, s.ldo, &do_kept.along, v, s.ldv, &v_kept.along, s.E
        )
    for r in range(b.rows):
        p, ds = scores + r * WIDTH, gradients + r * WIDTH
        begin = visible_begin(s, &b, r)
        end, n = visible_end(s, &b, r), strip_end(s, &b, r)
        scale = s.scale
        if s.cap > 0:
            _cap_scores(p, slope, n, s.scale, s.cap)
            scale = 1
        _weights(total, 0, p, end, n, scale, lse[i + r], s.rounded == NULL)
        _hide(p, begin, 0)
        if scored:
            _score_gradients(ds, p, end, n, s.scale, delta[i + r])
            if s.cap > 0:
                _multiply_rows(ds, slope, n)
            _hide(ds, begin, 0)
    if dv.y != NULL:  # dv += p^T do
        if _in_place(s):
            s.rounded.round(scores, scores, WIDTH, b.rows, b.columns, True)
        _add_columns(dv, s, &b, scores, do, s.ldo, &do_kept.across, s.E, add_to_keys)
    if dk.y != NULL:  # dk += ds^T q
        if _in_place(s):
            s.rounded.round(scores, gradients, WIDTH, b.rows, b.columns, True)
        _add_columns(
            dk, s, &b, scores if _in_place(s) else gradients, q, s.ldq, &q_kept.across, s.D,
            add_to_keys,
        )
    if dq.y != NULL:  # dq += ds k
        if _in_place(s):
            s.rounded.round(gradients, gradients, WIDTH, b.rows, b.columns, False)
        _add_rows(
            dq, s, &b, gradients, k, s.ldk, &k_kept.across, s.D, False, j > first_key(s, i)
        )
