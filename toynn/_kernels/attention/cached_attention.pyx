"""Causal attention of the newest T rows of a sequence over a cache of all its keys and values.

    kc[past + t] <- k[t],  vc[past + t] <- v[t]          t = 0 .. T - 1
    s[t,j] = scale q[t] . kc[j]                          j <= past + t, past + t - window < j
    o[t]   = sum_j e^(s[t,j] - lse[t]) vc[j]             lse[t] = log sum_j e^(s[t,j])

There are B sequences and H heads. q and k have D columns per head, v and o have E. Each of KV heads
of k and v serves H / KV query heads. vc (B, KV, S, E) has the values of a head row after row. kc
(B, KV, S, D) has its keys in blocks of 64, transposed: (B, KV, S / 64, D, 64). So scores are sums
over d of whole registers of keys, and q . k needs no sum across a register. Without v and vc the
first E columns of keys are the values. So a latent is cached once, not twice. past (B,) is how many
rows of each sequence the caches hold. Rows from past + T on are neither read nor written. T = 1 is
bound by memory bandwidth. So the heads that share k and v are the rows of one product, and spans of
keys are separate tasks. Their results are merged,

    o = sum_n e^(lse_n - lse) o_n                        lse = log sum_n e^(lse_n)

over the spans n. The first span begins with the first block of keys that the window shows. With a
cap, s is cap tanh(scale q[t] . kc[j] / cap); with sinks z (H,), lse[t] = log (e^z[h] + sum_j
e^s[t,j]). Outputs alias nothing; no gradient.
Source: Dao et al. 2023, Flash-Decoding, crfm.stanford.edu/2023/10/12/flashdecoding.html.
"""
from libc.math cimport INFINITY
from libc.string cimport memcpy, memset

from toynn._kernels.attention._attention cimport forward_block
from toynn._kernels.attention._visible cimport BLOCK, Sizes, first_key
from toynn._kernels.base._common cimport exp_
from toynn._kernels.base._parallel cimport deal
from toynn._kernels.gemm._product cimport blocks_of
from toynn._kernels.args.cached_attention cimport Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import cache_has_room

cdef enum:
    SPAN = 256       # keys per task if T = 1: four blocks, 64 KB each of k and v at D = 64
    SMALL = 1 << 17  # up to this many multiplications per product, waking threads does not pay


cdef inline Sizes _sizes(const Forward* a) noexcept nogil:
    cdef Sizes s
    memset(&s, 0, sizeof(Sizes))
    s.B, s.T, s.H, s.KV, s.D, s.E, s.S = a.B, a.T, a.H, a.KV, a.D, a.E, a.S
    s.ldq, s.ldk, s.ldv, s.ldo = a.ldq, a.ldk, a.ldv, a.H * a.E
    s.shared = a.v == NULL
    s.causal, s.cached, s.window, s.scale, s.cap = True, True, a.window, a.scale, a.cap
    return s


cdef inline Py_ssize_t _begin(const Forward* a, const Sizes* s, Py_ssize_t batch) noexcept nogil:
    """Where the first block begins that has keys which the first new row of a sequence sees."""
    return first_key(s, a.past[batch])


cdef inline Py_ssize_t _longest(const Forward* a, const Sizes* s) noexcept nogil:
    """The most keys of any sequence from its first visible block to its first new row."""
    cdef Py_ssize_t batch, longest = 0
    for batch in range(s.B):
        longest = max(longest, a.past[batch] - _begin(a, s, batch))
    return longest


cdef inline const float* _values(
    const Forward* a, const Sizes* s, Py_ssize_t head, Py_ssize_t row
) noexcept nogil:
    """Where cached values of a head begin, from a row that begins a block. If shared: its keys."""
    return a.kc + (head * s.S + row) * s.D if s.shared else a.vc + (head * s.S + row) * s.E


cdef inline void _append(
    const Forward* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t kv
) noexcept nogil:
    """Write the new rows of one head of k and v into the caches."""
    cdef Py_ssize_t head = (batch * s.KV + kv) * s.S, t, c, at
    cdef float* block
    cdef float* kc = a.kc + head * s.D
    cdef const float* k = a.k + batch * s.T * s.ldk + kv * s.D
    cdef const float* v = a.v + batch * s.T * s.ldv + kv * s.E if not s.shared else NULL
    for t in range(s.T):
        at = a.past[batch] + t
        block = kc + at // BLOCK * BLOCK * s.D
        for c in range(s.D):
            block[c * BLOCK + at % BLOCK] = k[t * s.ldk + c]
        if not s.shared:
            memcpy(a.vc + (head + at) * s.E, v + t * s.ldv, s.E * sizeof(float))


cdef inline void _attend_rows(
    const Forward* a, const Sizes* s, float* lse, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t i
) noexcept nogil:
    """Overwrite o of one head's queries i .. i + BLOCK - 1."""
    cdef Py_ssize_t head = batch * s.KV + h * s.KV // s.H, row = batch * s.T
    cdef float* o = a.o + row * s.ldo + h * s.E
    cdef const float* kc = a.kc + head * s.S * s.D
    cdef const float* vc = _values(a, s, head, 0)
    cdef const float* q = a.q + row * s.ldq + h * s.D
    cdef Sizes own = s[0]
    if a.sinks != NULL:
        own.sink = a.sinks + h
    own.past = a.past[batch]
    own.ldk = s.D
    own.ldv = s.D if s.shared else s.E
    forward_block(o, lse + row * s.H + h * s.T, q, kc, vc, &own, i)


cdef inline void _attend_span(
    const Forward* a, const Sizes* s, float* o, float* lse, Py_ssize_t batch, Py_ssize_t kv,
    Py_ssize_t first,
) noexcept nogil:
    """Overwrite o (G,E) and lse (G,) of G = H / KV heads, one query each, from a span of keys.

    The span is counted from the sequence's first visible block.
    """
    first += _begin(a, s, batch)
    cdef Py_ssize_t head = batch * s.KV + kv, i
    cdef const float* kc = a.kc + (head * s.S + first) * s.D
    cdef const float* vc = _values(a, s, head, first)
    cdef const float* q = a.q + batch * s.ldq + kv * s.H // s.KV * s.D
    cdef Sizes group = s[0]
    group.T = s.H // s.KV
    group.S = min(SPAN, a.past[batch] + 1 - first)
    if group.S <= 0:  # the sequence has no keys here: others are longer
        for i in range(group.T):
            lse[i] = -INFINITY
        memset(o, 0, group.T * s.E * sizeof(float))
        return
    if s.window > 0:
        group.hidden = max(0, a.past[batch] + 1 - s.window - first)
    group.causal, group.window = False, 0
    group.ldq = group.ldk = s.D
    group.ldv = s.D if s.shared else s.E
    group.ldo = s.E
    for i in range(blocks_of(group.T, BLOCK)):
        forward_block(o, lse, q, kc, vc, &group, i * BLOCK)


cdef inline void _combine(
    float* o, const float* parts, const float* lse, const float* sink, Py_ssize_t spans,
    Py_ssize_t G, Py_ssize_t E,
) noexcept nogil:
    """Overwrite o (E,) of one head by merging its spans, whose results are G heads apart."""
    cdef Py_ssize_t n, c
    cdef float most = -INFINITY if sink == NULL else sink[0], total = 0, weight
    for n in range(spans):
        most = max(most, lse[n * G])
    for c in range(E):
        o[c] = 0
    if sink != NULL:
        total = exp_(sink[0] - most)
    for n in range(spans):
        weight = exp_(lse[n * G] - most)
        total += weight
        for c in range(E):
            o[c] += weight * parts[n * G * E + c]
    for c in range(E):
        o[c] /= total


cdef struct Call:
    const Forward* a
    Sizes s
    float* lse
    float* parts                # o of each span
    Py_ssize_t G, spans, blocks  # heads of q for one of k; spans of keys, blocks of queries


cdef void _append_heads(void* call, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Call* x = <const Call*>call
    cdef Py_ssize_t i
    for i in range(first, last):
        _append(x.a, &x.s, i // x.s.KV, i % x.s.KV)


cdef void _attend_spans(void* call, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Call* x = <const Call*>call
    cdef Py_ssize_t i
    for i in range(first, last):
        _attend_span(
            x.a, &x.s, x.parts + i * x.G * x.s.E, x.lse + i * x.G, i // x.spans // x.s.KV,
            i // x.spans % x.s.KV, i % x.spans * SPAN,
        )


cdef void _combine_heads(void* call, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Call* x = <const Call*>call
    cdef const float* sinks = x.a.sinks
    cdef Py_ssize_t i, at, E = x.s.E
    for i in range(first, last):
        at = i // x.G * x.spans * x.G + i % x.G
        _combine(
            x.a.o + i * E, x.parts + at * E, x.lse + at,
            sinks + i % x.s.H if sinks != NULL else NULL, x.spans, x.G, E,
        )


cdef void _attend_blocks(void* call, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Call* x = <const Call*>call
    cdef Py_ssize_t i, head
    for i in range(first, last):
        head = i // x.blocks
        _attend_rows(x.a, &x.s, x.lse, head // x.s.H, head % x.s.H, i % x.blocks * BLOCK)


cdef void _forward(Forward* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef Py_ssize_t longest = _longest(a, &s) + s.T, spans = blocks_of(longest, SPAN)
    cdef float* lse = <float*>a.workspace
    cdef Call x = Call(
        a, s, lse, lse + s.B * s.H * spans, s.H // s.KV, spans, blocks_of(s.T, BLOCK)
    )
    cdef int n_threads = 1 if s.B * s.H * s.T * longest * s.D <= SMALL else a.n_threads
    deal(_append_heads, &x, s.B * s.KV, n_threads)
    if s.T == 1:
        deal(_attend_spans, &x, s.B * s.KV * spans, n_threads)
        deal(_combine_heads, &x, s.B * s.H, n_threads)
    else:
        deal(_attend_blocks, &x, s.B * s.H * x.blocks, n_threads)


cdef Py_ssize_t _forward_scratch(Forward* a) noexcept nogil:
    """Memory for the results of all spans of a full cache if T = 1, otherwise for lse."""
    if a.T == 1:
        return a.B * a.H * blocks_of(a.S, SPAN) * (1 + a.E) * sizeof(float)
    return a.B * a.H * a.T * sizeof(float)


forward = entry(
    "o[B*T H*E] kc[B KV S D]! vc[B KV S E]?! <- q[B*T H*D]@ldq k[B*T KV*D]@ldk v[B*T KV*E]?@ldv "
    "i32 past[B] sinks[H]? | E=D ldv=KV*E window=0 float scale=1/sqrt(D) cap=0.0",
    cache_has_room,
)
