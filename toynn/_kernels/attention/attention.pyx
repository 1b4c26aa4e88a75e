"""Scaled dot-product attention, causal or full, with grouped queries, without a T x T matrix.

    s[i,j] = scale q[i] . k[j]                 j <= i if causal; with a window i - window < j,
                                               and j < i + window if not causal
    p[i,j] = exp(s[i,j] - lse[i])              lse[i] = log sum_j exp(s[i,j])
    o[i]   = sum_j p[i,j] v[j]

    delta[i] = do[i] . o[i]                    ds[i,j] = p[i,j] (do[i] . v[j] - delta[i])
    dq[i] = scale sum_j ds[i,j] k[j]           dk[j] = scale sum_i ds[i,j] q[i]
    dv[j] = sum_i p[i,j] do[i]                 each of dq, dk, dv only if it is wanted

    with a cap:  s[i,j] = cap tanh(scale q[i] . k[j] / cap),  and ds[i,j] times 1 - (s[i,j] / cap)^2
    with sinks:  lse[i] = log (exp(z[h]) + sum_j exp(s[i,j])),
                 dz[h] = - sum_bi exp(z[h] - lse[i]) delta[i]      (backward_sinks)

Read bench/rungs/attention.c first: one head in plain C, then with an online softmax, in blocks and
in packed segments. Then read add_keys and backward_block in _attention.pxd, which are the
mathematics, and _visible.pxd. This file deals blocks to threads.

There are B sequences of T rows, and H heads. q and k have D columns per head, v and o have E. Each
of KV heads of k and v serves H / KV query heads. Scores are computed in blocks of BLOCK x BLOCK,
which _visible.pxd draws. forward keeps a running maximum and sum per row; backward recomputes p
from lse. q, k, v may be columns of one fused array, and dq, dk, dv of another; o, do are (B*T,
H*E). Saved: o, lse (B,H,T). All outputs are overwritten (dz: or added to) and alias nothing. A
sink, z (H,), is the score of one more key, which every row sees and which has no value: the weight
that goes to it adds nothing to o. The gradients above hold with sinks, too.

A sequence may be several examples that do not see each other. first[i] (i32) is the row at
which row i's example starts, counted over all rows. Blocks begin where examples start. So an
example has the same bits, and the same cost, as a separate sequence. Blocks of keys that a window
hides from all queries of a block are skipped, so that time is linear in T.

Precision "medium" rounds both factors of each product, also p and ds, to bfloat16. The CPU must
multiply pairs or tiles, and the example have more than SHORT rows. Sums and maxima stay float32;
exp is right to 2^-13, its rounding to 2^-9.
Sources: Dao 2023 (FlashAttention-2), arXiv:2307.08691, algorithms 1 and 2; windows: Beltagy et al.
2020, arXiv:2004.05150; the cap: Gemma Team 2024, arXiv:2408.00118, section 2; sinks: Xiao et al.
2023, arXiv:2309.17453, and OpenAI 2025, arXiv:2508.10925, section 2.
"""
from libc.string cimport memcpy, memset

from toynn._kernels.attention._attention cimport (
    Kept, Rows, Sums, Unit, add_keys, backward_block, begin_unit, blocks_seen, end_unit,
    keep_across, keep_along, kept_floats, keys_of,
)
from toynn._kernels.attention._visible cimport (
    BLOCK, WIDTH, Sizes, block_count, block_size, first_key,
)
from toynn._kernels.base._common cimport LANES, dot_, exp_
from toynn._kernels.gemm._product cimport (
    HAS_TILES, KC, PAIRS, Form, aligned, blocks_of, form_of_parts,
)
from toynn._kernels.base._parallel cimport deal_rooms, parallel_for, part_fn, room_fn
from toynn._kernels.base.pool cimport await_count, set_count
from toynn._kernels.args.attention cimport Backward, BackwardSinks, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import attention_fits
from toynn._kernels.base.cpu import gains_by_pairs

cdef enum:
    LINE = 64        # bytes
    UNITS = 16       # blocks of queries for which a block of keys is packed once
    KEYS = 8         # blocks of keys for which a block of queries is packed once, backward
    FEW = 2          # up to so many uses, packing a block of floats costs more than it saves
    DEALT = 3        # tasks for each thread, at the least, if there are so many
    SMALL = 1 << 19  # up to this many multiplications per product, waking threads does not pay
    SHORT = 32       # up to this many rows, packing pairs costs more than it saves
    MEDIUM = 2       # in toynn.numerics.precision.PRECISIONS

# In "medium".
cdef const Form* _rounded = form_of_parts(1) if HAS_TILES else PAIRS if gains_by_pairs() else NULL


ctypedef fused Args:
    Forward
    Backward


cdef inline Sizes _sizes(const Args* a) noexcept nogil:
    cdef Sizes s
    memset(&s, 0, sizeof(Sizes))
    s.B, s.T, s.H, s.KV, s.D, s.E, s.S = a.B, a.T, a.H, a.KV, a.D, a.E, a.T
    s.ldq, s.ldk, s.ldv, s.ldo = a.ldq, a.ldk, a.ldv, a.H * a.E
    s.causal, s.window, s.scale, s.cap = a.causal != 0, a.window, a.scale, a.cap
    s.rounded = _rounded if a.precision >= MEDIUM and s.T > SHORT else NULL
    return s


cdef inline Args _on_few_threads(const Args* a, const Sizes* s) noexcept nogil:
    """The same arguments, with one thread if the work is small."""
    cdef Args few = a[0]
    if s.B * s.H * s.T * s.T * s.D <= SMALL:
        few.n_threads = 1
    return few


cdef inline Py_ssize_t _start(const int* first, Py_ssize_t row, Py_ssize_t i) noexcept nogil:
    """The row at which the example of row i starts, in the sequence that begins at ``row``."""
    return first[row + i] - row if first != NULL else 0


cdef inline void begin(const Sizes* s) noexcept nogil:
    """What a thread does before it multiplies in a form, and after it: ``end``."""
    if s.rounded != NULL and s.rounded.begin != NULL:
        s.rounded.begin()


cdef inline void end(const Sizes* s) noexcept nogil:
    if s.rounded != NULL and s.rounded.end != NULL:
        s.rounded.end()


cdef inline Sizes _example(
    const Sizes* s, const int* first, Py_ssize_t row, Py_ssize_t i, Py_ssize_t end
) noexcept nogil:
    """The sizes of the example that row i is in, up to row ``end``."""
    cdef Sizes one = s[0]
    cdef Py_ssize_t start = _start(first, row, i)
    i = s.T if first == NULL else i
    end = min(end, s.T)
    while i < end and first[row + i] - row == start:
        i += 1
    one.T = one.S = i - start
    if one.T <= SHORT:
        one.rounded = NULL
    return one


cdef inline Py_ssize_t _stretches(const Sizes* s, const int* first) noexcept nogil:
    """Stretches of BLOCK rows in which blocks begin. Examples may begin in the last few rows."""
    return block_count(s, s.T) if first == NULL else blocks_of(s.T, BLOCK)


cdef inline bint _begins(
    const Sizes* s, const int* first, Py_ssize_t row, Py_ssize_t i
) noexcept nogil:
    """Whether a block begins at row i of the sequence at ``row``; a last one may be longer."""
    cdef Py_ssize_t n = i - _start(first, row, i)
    cdef Sizes one
    if n % BLOCK != 0:
        return False
    if s.causal or first == NULL or n == 0:
        return True
    one = _example(s, first, row, _start(first, row, i), s.T)
    return n // BLOCK < block_count(&one, one.T)


cdef inline float* _from(float* x, Py_ssize_t offset) noexcept nogil:
    """The part of a gradient from ``offset`` on; NULL if it is not wanted."""
    return x + offset if x != NULL else NULL


cdef inline Sums _block_of(
    float* x, Py_ssize_t row, Py_ssize_t ld, Py_ssize_t head, Py_ssize_t width
) noexcept nogil:
    """The block of a head that begins at a row of a gradient; NULL if it is not wanted."""
    return Sums(_from(x, row * ld + head * width), ld)


cdef inline bint _keeps(const Sizes* s) noexcept nogil:
    """Whether blocks are packed once for all products that read them."""
    return s.D <= KC and s.E <= KC and block_count(s, s.T) > 1


cdef inline bint _pays(const Sizes* s, Py_ssize_t uses) noexcept nogil:
    """Whether a block that so many products read is packed once; rounding packs it anyway."""
    return _keeps(s) and uses > (FEW if s.rounded == NULL else 1)


cdef inline Py_ssize_t _side_floats(const Sizes* s) noexcept nogil:
    """The most floats that a block of any of q, k, v, do takes, packed both ways."""
    return kept_floats(s, max(s.D, s.E)) if _keeps(s) else 0


cdef inline Py_ssize_t _sums_floats(const Sizes* s) noexcept nogil:
    """The most floats that the sums of a block of o, dq, dk or dv take, side by side."""
    return WIDTH * blocks_of(max(s.D, s.E), LANES) * LANES if _keeps(s) else 0


cdef inline Sums _side_by_side(float** room, Sums y, Py_ssize_t width) noexcept nogil:
    """Room for the sums of a block, in place of y, whose rows may lie far apart.

    Rows that are a multiple of 4 KB apart push each other out of L1.
    """
    if y.y != NULL:
        y = Sums(room[0], blocks_of(width, LANES) * LANES)
        room[0] += WIDTH * y.ld
    return y


cdef inline void _copy_rows(Sums y, Sums x, Py_ssize_t rows, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(rows if y.y != NULL and y.y != x.y else 0):
        memcpy(y.y + r * y.ld, x.y + r * x.ld, width * sizeof(float))


# -- Forward ---------------------------------------------------------------------------------------
# A task is up to UNITS blocks of queries, which share blocks of keys and values.


cdef struct Cut:
    Py_ssize_t heads, stretches  # heads that share k and v, and stretches of BLOCK rows, of a task
    Py_ssize_t splits, runs      # tasks for each head of k and v: along heads, along rows

cdef struct Task:
    Py_ssize_t batch, kv         # the sequence, and the head of k and v that its heads share
    Py_ssize_t h0, h1, i0, i1    # heads h0 .. h1 - 1, and rows i0 .. i1 - 1


cdef inline Cut _cut(const Sizes* s, Py_ssize_t stretches, int n_threads) noexcept nogil:
    """Smaller tasks if some threads would have none."""
    cdef Py_ssize_t group = s.H // s.KV
    cdef Cut c = Cut(min(group, <Py_ssize_t>UNITS), max(1, UNITS // group), 0, 0)
    if n_threads > 1 and s.B * s.KV * blocks_of(stretches, c.stretches) < DEALT * n_threads:
        c.stretches = 1
    if n_threads > 1 and s.B * s.KV * stretches < DEALT * n_threads:
        c.heads = 1
    c.splits, c.runs = blocks_of(group, c.heads), blocks_of(stretches, c.stretches)
    return c


cdef inline Py_ssize_t _units(const Sizes* s) noexcept nogil:
    """The most blocks of queries of a task."""
    return min(<Py_ssize_t>UNITS, s.H // s.KV * blocks_of(s.T, BLOCK))


cdef inline Py_ssize_t _forward_room(const Sizes* s) noexcept nogil:
    """Bytes of scratch memory of a thread: units, their queries and sums, a block of k and v."""
    cdef Py_ssize_t floats = _units(s) * _sums_floats(s) + (_units(s) + 2) * _side_floats(s)
    return _units(s) * sizeof(Unit) + floats * sizeof(float) + 2 * LINE


cdef inline void _forward_units(
    Forward* a, const Sizes* s, Unit* units, Py_ssize_t n, Py_ssize_t row, Py_ssize_t kv,
    float* free,
) noexcept nogil:
    """Compute n blocks of queries of an example, which begins at ``row``, in order."""
    cdef Rows k = Rows(a.k + row * s.ldk + kv * s.D, s.ldk, s.D), q
    cdef Rows v = Rows(a.v + row * s.ldv + kv * s.E, s.ldv, s.E)
    cdef Kept k_kept, v_kept, none
    cdef Py_ssize_t end = keys_of(s, units[n - 1].i), t, x, j, rows
    cdef float* room
    cdef Unit* u
    memset(&none, 0, sizeof(Kept))
    for x in range(n):
        u = units + x
        u.kept = none
        q = Rows(u.q, s.ldq, s.D)
        if _keeps(s) and keys_of(s, u.i) - first_key(s, u.i) > FEW * BLOCK:
            u.kept.along = keep_along(&free, s, &q, u.i, block_size(s, u.i, s.T), True)
        begin_unit(u, s)
        if _keeps(s) and keys_of(s, u.i) - first_key(s, u.i) > BLOCK:
            u.sums = _side_by_side(&free, u.sums, s.E)
    for t in range(first_key(s, units[0].i) // BLOCK, blocks_seen(s, units[n - 1].i)):
        j = t * BLOCK
        k_kept, v_kept, room = none, none, free
        if _keeps(s) and n > 1:
            rows = block_size(s, j, end)
            k_kept.along = keep_along(&room, s, &k, j, rows, False)
            v_kept.across = keep_across(&room, s, &v, j, rows)
        for x in range(n):
            u = units + x
            if first_key(s, u.i) <= j and t < blocks_seen(s, u.i):
                add_keys(u, s, k.x, v.x, &k_kept, &v_kept, j)
                if t + 1 == blocks_seen(s, u.i):
                    end_unit(u, s)


cdef inline Task _task(const Sizes* s, const Cut* c, Py_ssize_t rows, Py_ssize_t n) noexcept nogil:
    """Task n, of ``rows`` rows a sequence: the last rows, which see the most keys, come first."""
    cdef Task x
    cdef Py_ssize_t head = n // c.splits, run = c.runs - 1 - head // s.KV // s.B
    x.batch, x.kv = head // s.KV % s.B, head % s.KV
    x.h0 = x.kv * s.H // s.KV + n % c.splits * c.heads
    x.h1 = min(x.h0 + c.heads, (x.kv + 1) * s.H // s.KV)
    x.i0 = run * c.stretches * BLOCK
    x.i1 = min(x.i0 + c.stretches * BLOCK, rows)
    return x


cdef void _forward_task(Forward* a, void* room, Py_ssize_t n) noexcept nogil:
    """Compute the blocks of queries that begin in the rows of a task."""
    cdef Sizes s = _sizes(a), one
    cdef Py_ssize_t stretches = _stretches(&s, a.first)
    cdef Cut c = _cut(&s, stretches, a.n_threads)
    cdef Task x = _task(&s, &c, min(stretches * BLOCK, s.T), n)
    cdef Unit* units = <Unit*>aligned(room)
    cdef Unit* u
    cdef float* free = aligned(units + _units(&s))
    cdef Py_ssize_t sequence = x.batch * s.T, start = -1, count = 0, i, h, row
    begin(&s)
    for i in range(x.i0, x.i1):
        if not _begins(&s, a.first, sequence, i):
            continue
        if count and (_start(a.first, sequence, i) != start or count + x.h1 - x.h0 > _units(&s)):
            _forward_units(a, &one, units, count, sequence + start, x.kv, free)
            count = 0
        start = _start(a.first, sequence, i)
        row = sequence + start
        if s.causal:  # keys of later rows are not seen
            one = _example(&s, a.first, sequence, i, i + BLOCK)
        else:
            one = _example(&s, a.first, sequence, start, s.T)
        for h in range(x.h0, x.h1):
            u = units + count
            u.o, u.q = a.o + row * s.ldo + h * s.E, a.q + row * s.ldq + h * s.D
            u.lse = a.lse + (x.batch * s.H + h) * s.T + start
            u.sink = a.sinks + h if a.sinks != NULL else NULL
            u.i = i - start
            count += 1
    if count:
        _forward_units(a, &one, units, count, sequence + start, x.kv, free)
    end(&s)


cdef void _forward(Forward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Forward few = _on_few_threads(a, &s)
    cdef Cut c = _cut(&s, _stretches(&s, a.first), few.n_threads)
    deal_rooms(
        <room_fn>_forward_task, &few, s.B * s.KV * c.splits * c.runs, few.n_threads, a.workspace,
        _forward_room(&s),
    )


cdef Py_ssize_t _forward_scratch(Forward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    return a.n_threads * _forward_room(&s)


# -- Backward --------------------------------------------------------------------------------------
# An area is up to KEYS blocks of keys against all blocks of queries that see them, the last queries
# first. The areas of a head add to the same dq, in the order of their keys. Threads compute them
# side by side: each tells how far it has come, and the thread of the next area follows it. Here
# areas are two blocks of keys wide:
#
#     keys       0 1 2 3 4 5
#     queries 0  a a
#             1  a a
#             2  a a b b
#             3  a a b b
#             4  a a b b b b
#             5  a a b b b b         thread a begins here, and thread b when a has finished this row
#
# So no thread waits long, and thread b has time for the third area.

cdef struct Areas:
    Backward* a
    Py_ssize_t stretches
    Py_ssize_t keys      # blocks of keys of an area, at most
    Py_ssize_t* done     # for each area, how many of its steps are finished; NULL: only one thread


cdef inline Py_ssize_t _keys(const Sizes* s, Py_ssize_t stretches, int n_threads) noexcept nogil:
    """Blocks of keys of an area: fewer if some threads would have no area."""
    cdef Py_ssize_t keys = KEYS, heads = s.B * s.KV
    if heads % n_threads == 0:
        return keys
    while keys > 1 and heads * blocks_of(stretches, keys) < DEALT * n_threads:
        keys //= 2
    return keys


cdef inline Py_ssize_t _backward_room(const Sizes* s) noexcept nogil:
    """Bytes of scratch memory of a thread: KEYS blocks of k and v, one of q, and sums of each."""
    cdef Py_ssize_t keys = min(<Py_ssize_t>KEYS, blocks_of(s.T, BLOCK))
    cdef Py_ssize_t floats = (2 * keys + 2) * _side_floats(s) + (2 * keys + 1) * _sums_floats(s)
    return floats * sizeof(float) + LINE


cdef inline Py_ssize_t _first_query(const Sizes* s, Py_ssize_t j) noexcept nogil:
    """The first block of queries that see keys of block j."""
    return j if s.causal else first_key(s, j * BLOCK) // BLOCK


cdef inline void _backward_area(
    Backward* a, const Sizes* s, void* room, Py_ssize_t batch, Py_ssize_t start, Py_ssize_t kv,
    Py_ssize_t j0, Py_ssize_t j1, Py_ssize_t* before, Py_ssize_t* done,
) noexcept nogil:
    """Add to dq, dk and dv what blocks j0 .. j1 - 1 of keys give, for a head of k and v.

    s are the sizes of the example that begins at ``start``. ``before`` tells how far the previous
    area of the example has come, and ``done`` how far this one has; NULL: there is none.
    """
    cdef Py_ssize_t row = batch * a.T + start, group = a.H // a.KV, h0 = kv * group
    cdef Py_ssize_t i0 = _first_query(s, j0), i1 = block_count(s, s.T)
    cdef Rows k = Rows(a.k + row * s.ldk + kv * s.D, s.ldk, s.D), q, do
    cdef Rows v = Rows(a.v + row * s.ldv + kv * s.E, s.ldv, s.E)
    cdef float* free = aligned(room)
    cdef float* own
    cdef Kept k_kept[KEYS]
    cdef Kept v_kept[KEYS]
    cdef Kept q_kept, do_kept
    cdef Sums dk[KEYS]
    cdef Sums dv[KEYS]
    cdef Sums dk_sums[KEYS]
    cdef Sums dv_sums[KEYS]
    cdef Sums dq, dq_sums
    cdef bint begun[KEYS]
    cdef Py_ssize_t i, j, h, n, rows, at, first, last, step = 0
    memset(k_kept, 0, sizeof(k_kept))
    memset(v_kept, 0, sizeof(v_kept))
    memset(begun, 0, sizeof(begun))
    for n in range(j1 - j0):
        j = (j0 + n) * BLOCK
        dk[n] = dk_sums[n] = _block_of(a.dk, row + j, s.ldk, kv, s.D)
        dv[n] = dv_sums[n] = _block_of(a.dv, row + j, s.ldv, kv, s.E)
        if _pays(s, group * (i1 - i0)):
            rows = block_size(s, j, s.T)
            k_kept[n].along = keep_along(&free, s, &k, j, rows, False)
            v_kept[n].along = keep_along(&free, s, &v, j, rows, False)
            k_kept[n].across = keep_across(&free, s, &k, j, rows)
            dk_sums[n] = _side_by_side(&free, dk[n], s.D)
            dv_sums[n] = _side_by_side(&free, dv[n], s.E)
    for i in range(i1 - 1, i0 - 1, -1):
        first = max(j0, first_key(s, i * BLOCK) // BLOCK)
        last = min(j1, blocks_seen(s, i * BLOCK))
        rows = block_size(s, i * BLOCK, s.T)
        for h in range(h0, h0 + group):
            step += 1
            at = (batch * a.H + h) * a.T + start
            q = Rows(a.q + row * s.ldq + h * s.D, s.ldq, s.D)
            do = Rows(a.do + row * s.ldo + h * s.E, s.ldo, s.E)
            dq = _block_of(a.dq, row + i * BLOCK, s.ldq, h, s.D)
            memset(&q_kept, 0, sizeof(Kept))
            do_kept, own, dq_sums = q_kept, free, dq
            if _pays(s, last - first):
                q_kept.along = keep_along(&own, s, &q, i * BLOCK, rows, True)
                do_kept.along = keep_along(&own, s, &do, i * BLOCK, rows, True)
                q_kept.across = keep_across(&own, s, &q, i * BLOCK, rows)
                do_kept.across = keep_across(&own, s, &do, i * BLOCK, rows)
                dq_sums = _side_by_side(&own, dq, s.D)
            if first * BLOCK > first_key(s, i * BLOCK):  # dq has sums of earlier keys
                if before != NULL:
                    await_count(before, step)
                _copy_rows(dq_sums, dq, rows, s.D)
            for j in range(first, last):
                n = j - j0
                backward_block(
                    dq_sums, dk_sums[n], dv_sums[n], _from(a.delta, at), do.x, a.lse + at, q.x,
                    k.x, v.x, &q_kept, &k_kept[n], &v_kept[n], &do_kept, s, i * BLOCK, j * BLOCK,
                    begun[n],
                )
                begun[n] = True
            _copy_rows(dq, dq_sums, rows, s.D)
            if done != NULL:
                set_count(done, step)
    for n in range(j1 - j0):
        rows = block_size(s, (j0 + n) * BLOCK, s.T)
        _copy_rows(dk[n], dk_sums[n], rows, s.D)
        _copy_rows(dv[n], dv_sums[n], rows, s.E)


cdef void _deltas(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t i, row, h, at
    for i in range(first, last):  # head by head, as do and o are in memory
        row, h = i // s.H, i % s.H
        at = row * s.ldo + h * s.E
        a.delta[(row // s.T * s.H + h) * s.T + row % s.T] = dot_(a.do + at, a.o + at, s.E)


cdef void _areas(Areas* x, void* room, Py_ssize_t n) noexcept nogil:
    """Compute the areas that begin in a stretch of BLOCK rows, for a head of k and v."""
    cdef Backward* a = x.a
    cdef Sizes s = _sizes(a), one
    cdef Py_ssize_t kv = n % s.KV, batch = n // s.KV % s.B, t = n // s.KV // s.B, r, start, j, last
    cdef Py_ssize_t* done = x.done + (batch * s.KV + kv) * x.stretches + t
    cdef bint in_turn = x.done != NULL and a.dq != NULL
    begin(&s)
    for r in range(t * BLOCK, min((t + 1) * BLOCK, s.T)):
        start = _start(a.first, batch * s.T, r)
        if (r - start) % BLOCK != 0:
            continue
        j = (r - start) // BLOCK
        if j % x.keys == 0 and _begins(&s, a.first, batch * s.T, r):
            one = _example(&s, a.first, batch * s.T, start, s.T)
            last = min(j + x.keys, block_count(&one, one.T))
            # An area that has a next one is as long as a stretch: none begins after it in this one.
            _backward_area(
                a, &one, room, batch, start, kv, j, last,
                done - x.keys if in_turn and j > 0 else NULL,
                done if in_turn and last < block_count(&one, one.T) else NULL,
            )
    end(&s)


cdef void _backward(Backward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Backward few = _on_few_threads(a, &s)
    cdef Py_ssize_t stretches = _stretches(&s, a.first), room = _backward_room(&s)
    cdef Py_ssize_t tasks = s.B * s.KV * stretches
    cdef int m = few.n_threads
    cdef Areas x = Areas(&few, stretches, _keys(&s, stretches, m), NULL)
    if m > 1:
        x.done = <Py_ssize_t*>aligned(<char*>a.workspace + m * room)
        memset(x.done, 0, tasks * sizeof(Py_ssize_t))
    if a.delta != NULL:
        parallel_for(<part_fn>_deltas, &few, s.B * s.H * s.T)
    # Earlier keys first: an area's thread waits only for areas that other threads have begun.
    deal_rooms(<room_fn>_areas, &x, tasks, m, a.workspace, room)


cdef Py_ssize_t _backward_scratch(Backward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t counts = s.B * s.KV * blocks_of(s.T, BLOCK)
    return a.n_threads * _backward_room(&s) + counts * sizeof(Py_ssize_t) + LINE


cdef void _sink_heads(BackwardSinks* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t B = a.B, T = a.T, H = a.H, E = a.E, batch, h, i, at
    cdef float total, weight
    for h in range(begin, end):
        total = 0
        for batch in range(B):
            for i in range(T):
                at = ((batch * T + i) * H + h) * E
                weight = exp_(a.sinks[h] - a.lse[(batch * H + h) * T + i])
                total -= weight * dot_(a.do + at, a.o + at, E)
        a.dsinks[h] = a.dsinks[h] + total if a.accumulate else total


cdef void _backward_sinks(BackwardSinks* a) noexcept nogil:
    parallel_for(<part_fn>_sink_heads, a, a.H)


# A row sees ``window`` keys up to its own, and if not causal as many from its own on; 0: all.
# ``cap`` bounds scores; 0: no cap.
forward = entry(
    "o[B*T H*E]; lse[B H T] <- q[B*T H*D]@ldq k[B*T KV*D]@ldk v[B*T KV*E]@ldv i32 first[B*T]? "
    "sinks[H]? | E=D causal=1 window=0 precision=highest float scale=1/sqrt(D) cap=0.0",
    attention_fits,
)
backward = entry(
    "dq[B*T H*D]?@ldq dk[B*T KV*D]?@ldk dv[B*T KV*E]?@ldv; delta[B H T]? <- do[B*T H*E] o[B*T H*E] "
    "lse[B H T] q[B*T H*D]@ldq k[B*T KV*D]@ldk v[B*T KV*E]@ldv i32 first[B*T]? "
    "| E=D causal=1 window=0 precision=highest float scale=1/sqrt(D) cap=0.0",
    attention_fits,
)
backward_sinks = entry(
    "dsinks[H]+ <- do[B*T H*E] o[B*T H*E] lse[B H T] sinks[H]",
)
