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
in packed segments. Then read forward_block and backward_block in _attention.pxd, which are the
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
multiply pairs, and the example have more than SHORT rows. Sums, maxima and exp stay float32.
Sources: Dao 2023 (FlashAttention-2), arXiv:2307.08691, algorithms 1 and 2; windows: Beltagy et al.
2020, arXiv:2004.05150; the cap: Gemma Team 2024, arXiv:2408.00118, section 2; sinks: Xiao et al.
2023, arXiv:2309.17453, and OpenAI 2025, arXiv:2508.10925, section 2.
"""
from libc.string cimport memset

from toynn._kernels.attention._attention cimport backward_block, forward_block
from toynn._kernels.attention._visible cimport (
    BLOCK, Sizes, block_count, block_size, first_key, key_blocks,
)
from toynn._kernels.base._common cimport dot_, exp_
from toynn._kernels.gemm._product cimport PAIRS, Form
from toynn._kernels.base._parallel cimport parallel_each, parallel_for, part_fn
from toynn._kernels.args.attention cimport Backward, BackwardSinks, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import attention_fits
from toynn._kernels.base.cpu import gains_by_pairs

cdef enum:
    SMALL = 1 << 19  # up to this many multiplications per product, waking threads does not pay
    SHORT = 32       # up to this many rows, packing pairs costs more than it saves
    SPLIT = 2        # threads for each head of keys from which backward computes scores twice
    MEDIUM = 2       # in toynn.numerics.precision.PRECISIONS

cdef const Form* _rounded = PAIRS if gains_by_pairs() else NULL  # in "medium"


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


cdef inline void _backward_pair(
    Backward* a, const Sizes* s, const Sizes* one, Py_ssize_t batch, Py_ssize_t h,
    Py_ssize_t start, Py_ssize_t i, Py_ssize_t j, bint queries, bint keys, bint add_to_keys,
) noexcept nogil:
    """What a block of queries and one of keys add: to dq if ``queries``, to dk, dv if ``keys``.

    ``one`` is the example that begins at ``start``; i and j count its blocks.
    """
    cdef Py_ssize_t row = batch * s.T + start, kv = h * s.KV // s.H
    cdef Py_ssize_t at_k = row * s.ldk + kv * s.D, at_v = row * s.ldv + kv * s.E
    cdef Py_ssize_t at_q = row * s.ldq + h * s.D, at_o = row * s.ldo + h * s.E
    cdef Py_ssize_t at_t = (batch * s.H + h) * s.T + start
    backward_block(
        _from(a.dq if queries else NULL, at_q), _from(a.dk if keys else NULL, at_k),
        _from(a.dv if keys else NULL, at_v), _from(a.delta, at_t), a.do + at_o, a.lse + at_t,
        a.q + at_q, a.k + at_k, a.v + at_v, one, i * BLOCK, j * BLOCK, add_to_keys,
    )


cdef inline void _backward_keys(
    Backward* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t kv, Py_ssize_t start, Py_ssize_t j,
    bint queries,
) noexcept nogil:
    """dk and dv of block j of keys of an example; with ``queries`` also what it adds to dq."""
    cdef Sizes one = _example(s, a.first, batch * s.T, start, s.T)
    cdef Py_ssize_t group = s.H // s.KV, blocks = block_count(&one, one.T), g, i
    cdef Py_ssize_t i0 = j if s.causal else first_key(&one, j * BLOCK) // BLOCK
    for g in range(group):
        for i in range(i0, blocks):
            if first_key(&one, i * BLOCK) > j * BLOCK:
                break  # later queries do not see these keys either
            _backward_pair(
                a, s, &one, batch, kv * group + g, start, i, j, queries, True, g > 0 or i > i0
            )


cdef inline void _backward_queries(
    Backward* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t start, Py_ssize_t i
) noexcept nogil:
    """dq of block i of queries of an example: the sums of _backward_keys, in the same order."""
    cdef Sizes one = _example(s, a.first, batch * s.T, start, s.T)
    cdef Py_ssize_t rows = block_size(&one, i * BLOCK, one.T), j
    for j in range(first_key(&one, i * BLOCK) // BLOCK, key_blocks(&one, i * BLOCK, rows)):
        _backward_pair(a, s, &one, batch, h, start, i, j, True, False, True)


cdef inline void _forward_block(
    Forward* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t i
) noexcept nogil:
    """Compute the block of queries that begins at row i of a sequence."""
    cdef Py_ssize_t kv = h * s.KV // s.H, start = _start(a.first, batch * s.T, i)
    cdef Py_ssize_t row = batch * s.T + start
    cdef Sizes one
    if s.causal:  # later rows do not count
        one = _example(s, a.first, batch * s.T, i, i + BLOCK)
    else:
        one = _example(s, a.first, batch * s.T, start, s.T)
    if a.sinks != NULL:
        one.sink = a.sinks + h
    forward_block(
        a.o + row * s.ldo + h * s.E, a.lse + (batch * s.H + h) * s.T + start,
        a.q + row * s.ldq + h * s.D, a.k + row * s.ldk + kv * s.D, a.v + row * s.ldv + kv * s.E,
        &one, i - start,
    )


cdef void _forward_stretches(Forward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the blocks of queries that begin in given stretches of BLOCK rows.

    Stretches are counted through sequences and heads.
    """
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t stretches = block_count(&s, s.T), n, i, r, batch, rows
    for n in range(begin, end):
        batch = n // stretches // s.H
        i = n % stretches * BLOCK
        rows = min(BLOCK, s.T - i) if a.first != NULL else 1
        for r in range(i, i + rows):
            if _begins(&s, a.first, batch * s.T, r):
                _forward_block(a, &s, batch, n // stretches % s.H, r)


cdef void _forward(Forward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Forward few = _on_few_threads(a, &s)
    parallel_for(<part_fn>_forward_stretches, &few, s.B * s.H * block_count(&s, s.T))


cdef void _deltas(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t i, at
    for i in range(first, last):
        at = (i // s.T // s.H * s.T + i % s.T) * s.ldo + i // s.T % s.H * s.E
        a.delta[i] = dot_(a.do + at, a.o + at, s.E)


cdef void _backward_stretches(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the examples that start in given stretches of BLOCK rows.

    Stretches are counted through sequences and heads of k and v.
    """
    cdef Sizes s = _sizes(a)
    cdef Sizes one
    cdef Py_ssize_t stretches = block_count(&s, s.T), n, i, j, r, batch
    for n in range(begin, end):
        batch = n // stretches // s.KV
        i = n % stretches * BLOCK
        for r in range(i, min(i + BLOCK, s.T)):
            if _start(a.first, batch * s.T, r) == r:
                one = _example(&s, a.first, batch * s.T, r, s.T)
                for j in range(block_count(&one, one.T)):
                    _backward_keys(a, &s, batch, n // stretches % s.KV, r, j, True)


cdef void _key_blocks(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """dk and dv of the blocks of keys that begin in given stretches: the first ones first."""
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t n, r, start, batch, i
    for n in range(begin, end):
        batch = n // s.KV % s.B
        i = n // s.KV // s.B * BLOCK
        for r in range(i, i + (min(BLOCK, s.T - i) if a.first != NULL else 1)):
            start = _start(a.first, batch * s.T, r)
            if _begins(&s, a.first, batch * s.T, r):
                _backward_keys(a, &s, batch, n % s.KV, start, (r - start) // BLOCK, False)


cdef void _query_blocks(Backward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """dq of the blocks of queries that begin in given stretches: the last ones first."""
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t stretches = block_count(&s, s.T), n, r, start, batch, i
    for n in range(begin, end):
        batch = n // s.H % s.B
        i = (stretches - 1 - n // s.H // s.B) * BLOCK
        for r in range(i, i + (min(BLOCK, s.T - i) if a.first != NULL else 1)):
            start = _start(a.first, batch * s.T, r)
            if _begins(&s, a.first, batch * s.T, r):
                _backward_queries(a, &s, batch, n % s.H, start, (r - start) // BLOCK)


cdef inline Py_ssize_t _examples(const int* first, Py_ssize_t rows, Py_ssize_t B) noexcept nogil:
    """Count the examples of all sequences."""
    cdef Py_ssize_t i, count = 0
    if first == NULL:
        return B
    for i in range(rows):
        count += first[i] == i
    return count


cdef void _backward(Backward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Backward few = _on_few_threads(a, &s)
    cdef Py_ssize_t blocks = block_count(&s, s.T)
    cdef Py_ssize_t heads = s.KV * _examples(a.first, s.B * s.T, s.B)
    if a.delta != NULL:
        parallel_for(<part_fn>_deltas, &few, s.B * s.H * s.T)
    if blocks > 1 and SPLIT * heads < few.n_threads:
        # Some threads would have no head. Computing all scores twice, for keys and for queries,
        # takes 1.4 times the work, and gives the same bits.
        if a.dk != NULL or a.dv != NULL:
            parallel_each(<part_fn>_key_blocks, &few, s.B * s.KV * blocks)
        if a.dq != NULL:
            parallel_each(<part_fn>_query_blocks, &few, s.B * s.H * blocks)
        return
    parallel_for(<part_fn>_backward_stretches, &few, s.B * s.KV * blocks)


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


# A row sees ``window`` keys up to its own, and if not causal as many back from it; 0: all of them. ``cap`` bounds scores; 0: no cap.
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
