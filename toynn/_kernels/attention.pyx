"""Scaled dot-product attention, causal or full, with grouped queries, without a T x T matrix.

    s[i,j] = scale q[i] . k[j]                 j <= i if causal, i - window < j if there is one
    p[i,j] = exp(s[i,j] - lse[i])              lse[i] = log sum_j exp(s[i,j])
    o[i]   = sum_j p[i,j] v[j]

    delta[i] = do[i] . o[i]                    ds[i,j] = p[i,j] (do[i] . v[j] - delta[i])
    dq[i] = scale sum_j ds[i,j] k[j]           dk[j] = scale sum_i ds[i,j] q[i]
    dv[j] = sum_i p[i,j] do[i]                 each of dq, dk, dv only if it is wanted

    with a cap:  s[i,j] = cap tanh(scale q[i] . k[j] / cap),  and ds[i,j] times 1 - (s[i,j] / cap)^2
    with sinks:  lse[i] = log (exp(z[h]) + sum_j exp(s[i,j])),
                 dz[h] = - sum_bi exp(z[h] - lse[i]) delta[i]      (backward_sinks)

for each of B sequences of T rows and each of H heads of D columns; KV heads of k and v serve
H / KV query heads each. Scores live in blocks of BLOCK x BLOCK (_attention.pxd); forward keeps a
running maximum and sum per row, backward recomputes p from lse. q, k, v may be columns of one fused
array, and dq, dk, dv of another; o, do are (B*T, H*D). Saved: o, lse (B,H,T). All outputs are
overwritten (dz: or added to) and alias nothing. A sink, z (H,), is the score of a key without a
value, which every row sees: what it draws is lost. The gradients by lse and o hold with it, too.

Causal rows may come in segments, which do not see each other: first[i], an i32 per row, is the
first row of row i's segment, counted over all rows. Blocks begin where segments do, so that a
segment gives the same bits, and costs as much, as if it were a sequence of its own. Blocks of keys
that a window hides from all queries of a block are skipped: time is linear in T then.

With precision "medium", for segments of more than SHORT rows and where the CPU multiplies pairs,
both factors of each product, p and ds too, are rounded to bfloat16; sums, maxima and exp stay
float32.
Sources: Dao 2023 (FlashAttention-2), arXiv:2307.08691, algorithms 1 and 2; windows: Beltagy et al.
2020, arXiv:2004.05150; the cap: Gemma Team 2024, arXiv:2408.00118, section 2; sinks: Xiao et al.
2023, arXiv:2309.17453, and OpenAI 2025, arXiv:2508.10925, section 2.
"""
from libc.math cimport sqrt

from toynn._kernels._attention cimport (
    BLOCK, Sizes, at_row, backward_block, block_count, first_key, forward_block, row_floats
)
from toynn._kernels._common cimport at1, at2, at3, dot_, exp_, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._panels cimport HAS_PAIRS
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

import numpy as np

from toynn._kernels._check import check, check_limits, precision_index
from toynn._kernels.cpu import gains_by_pairs
from toynn.checks import segments_within

cdef enum:
    SMALL = 1 << 19  # multiplications per product for which waking threads costs too much
    SHORT = 32       # rows of a sequence for which packing pairs costs what they save
    MEDIUM = 2       # in toynn.precision.PRECISIONS

cdef bint _pairs = HAS_PAIRS and gains_by_pairs()


cdef inline Sizes _sizes(const KernelArgs* a) noexcept nogil:
    cdef Sizes s
    cdef Py_ssize_t precision = a.n[10]
    s.B, s.T, s.H, s.KV, s.D = a.n[0], a.n[1], a.n[2], a.n[3], a.n[4]
    s.ldq, s.ldk, s.ldv, s.causal = a.n[5], a.n[6], a.n[7], a.n[8] != 0
    s.S, s.past, s.cached = s.T, 0, False
    s.window, s.hidden = a.n[9], 0
    s.ldo = s.H * s.D
    s.scale, s.cap = a.f[0], a.f[1]
    s.sunk, s.sink = False, 0
    s.pairs = _pairs and precision == MEDIUM and s.T > SHORT
    return s


cdef inline KernelArgs _on_few_threads(const KernelArgs* a, const Sizes* s) noexcept nogil:
    """The same arguments, for as many threads as the work is worth."""
    cdef KernelArgs few = a[0]
    if s.B * s.H * s.T * s.T * s.D <= SMALL:
        few.n_threads = 1
    return few


cdef inline Py_ssize_t _start(const int* first, Py_ssize_t row, Py_ssize_t i) noexcept nogil:
    """The first row of the segment of row i, in the sequence that begins at ``row``."""
    return first[row + i] - row if first != NULL else 0


cdef inline Sizes _segment(
    const Sizes* s, const int* first, Py_ssize_t row, Py_ssize_t i, Py_ssize_t end
) noexcept nogil:
    """The sizes of the segment that row i is in, as far as it goes before ``end``."""
    cdef Sizes one = s[0]
    cdef Py_ssize_t start = _start(first, row, i)
    i = s.T if first == NULL else i
    end = min(end, s.T)
    while i < end and first[row + i] - row == start:
        i += 1
    one.T = one.S = i - start
    one.pairs = s.pairs and one.T > SHORT
    return one


cdef inline float* _from(float* x, Py_ssize_t offset) noexcept nogil:
    """The part of a gradient from ``offset`` on; NULL if it is not wanted."""
    return x + offset if x != NULL else NULL


cdef inline void _backward_head(
    KernelArgs* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t kv, Py_ssize_t start
) noexcept nogil:
    """Of the segment that begins at ``start``: dk and dv of one head, dq of those it serves."""
    cdef float* dq = <float*>a.t[0]
    cdef float* dk = <float*>a.t[1]
    cdef float* dv = <float*>a.t[2]
    cdef float* delta = <float*>a.t[3]
    cdef const float* do = <const float*>a.t[4]
    cdef const float* lse = <const float*>a.t[6]
    cdef const float* q = <const float*>a.t[7]
    cdef const float* k = <const float*>a.t[8]
    cdef const float* v = <const float*>a.t[9]
    cdef const int* first = <const int*>a.t[10]
    cdef Sizes one = _segment(s, first, batch * s.T, start, s.T)
    cdef Py_ssize_t group = s.H // s.KV, blocks = block_count(&one, one.T)
    cdef Py_ssize_t row = batch * s.T + start, i, j, g, h, i0
    cdef Py_ssize_t at_k = row * s.ldk + kv * s.D, at_v = row * s.ldv + kv * s.D, at_q, at_o, at_t
    for j in range(blocks):
        i0 = j if s.causal else 0
        for g in range(group):
            h = kv * group + g
            at_q = row * s.ldq + h * s.D
            at_o = row * s.ldo + h * s.D
            at_t = (batch * s.H + h) * s.T + start
            for i in range(i0, blocks):
                if first_key(&one, i * BLOCK) > j * BLOCK:
                    break  # nor do later queries see these keys
                backward_block(
                    _from(dq, at_q), _from(dk, at_k), _from(dv, at_v), _from(delta, at_t),
                    do + at_o, lse + at_t, q + at_q, k + at_k, v + at_v,
                    &one, i * BLOCK, j * BLOCK, g > 0 or i > i0,
                )


cdef inline void _forward_block(
    KernelArgs* a, const Sizes* s, Py_ssize_t batch, Py_ssize_t h, Py_ssize_t i
) noexcept nogil:
    """The block of queries that begins at row i of a sequence."""
    cdef float* o = <float*>a.t[0]
    cdef float* lse = <float*>a.t[1]
    cdef const float* q = <const float*>a.t[2]
    cdef const float* k = <const float*>a.t[3]
    cdef const float* v = <const float*>a.t[4]
    cdef const int* first = <const int*>a.t[5]
    cdef const float* sinks = <const float*>a.t[6]
    cdef Py_ssize_t kv = h * s.KV // s.H, start = _start(first, batch * s.T, i)
    cdef Py_ssize_t row = batch * s.T + start
    cdef Sizes one = _segment(s, first, batch * s.T, i, i + BLOCK)
    if sinks != NULL:
        one.sunk, one.sink = True, sinks[h]
    forward_block(
        o + row * s.ldo + h * s.D, lse + (batch * s.H + h) * s.T + start, q + row * s.ldq + h * s.D,
        k + row * s.ldk + kv * s.D, v + row * s.ldv + kv * s.D, &one, i - start,
    )


cdef void _forward_windows(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """The blocks of queries that begin in windows of BLOCK rows, by sequence and head."""
    cdef Sizes s = _sizes(a)
    cdef const int* first = <const int*>a.t[5]
    cdef Py_ssize_t windows = block_count(&s, s.T), w, i, r, batch, rows
    for w in range(begin, end):
        batch = w // windows // s.H
        i = w % windows * BLOCK
        rows = min(BLOCK, s.T - i) if first != NULL else 1
        for r in range(i, i + rows):
            if (r - _start(first, batch * s.T, r)) % BLOCK == 0:
                _forward_block(a, &s, batch, w // windows % s.H, r)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef KernelArgs few = _on_few_threads(a, &s)
    parallel_for(_forward_windows, &few, s.B * s.H * block_count(&s, s.T))


cdef void _deltas(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef float* delta = <float*>a.t[3]
    cdef const float* do = <const float*>a.t[4]
    cdef const float* o = <const float*>a.t[5]
    cdef Py_ssize_t i, at
    for i in range(first, last):
        at = (i // s.T // s.H * s.T + i % s.T) * s.ldo + i // s.T % s.H * s.D
        delta[i] = dot_(do + at, o + at, s.D)


cdef void _backward_windows(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """The segments that begin in windows of BLOCK rows, by sequence and head of k and v."""
    cdef Sizes s = _sizes(a)
    cdef const int* first = <const int*>a.t[10]
    cdef Py_ssize_t windows = block_count(&s, s.T), w, i, r, batch
    for w in range(begin, end):
        batch = w // windows // s.KV
        i = w % windows * BLOCK
        for r in range(i, min(i + BLOCK, s.T)):
            if _start(first, batch * s.T, r) == r:
                _backward_head(a, &s, batch, w // windows % s.KV, r)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Sizes s = _sizes(a)
    cdef KernelArgs few = _on_few_threads(a, &s)
    cdef const float* delta = <const float*>a.t[3]
    if delta != NULL:
        parallel_for(_deltas, &few, s.B * s.H * s.T)
    parallel_for(_backward_windows, &few, s.B * s.KV * block_count(&s, s.T))


cdef void _sink_heads(KernelArgs* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef float* dsinks = <float*>a.t[0]
    cdef const float* do = <const float*>a.t[1]
    cdef const float* o = <const float*>a.t[2]
    cdef const float* lse = <const float*>a.t[3]
    cdef const float* sinks = <const float*>a.t[4]
    cdef Py_ssize_t B = a.n[0], T = a.n[1], H = a.n[2], D = a.n[3], batch, h, i, at
    cdef float total
    for h in range(begin, end):
        total = 0
        for batch in range(B):
            for i in range(T):
                at = ((batch * T + i) * H + h) * D
                total -= exp_(sinks[h] - lse[(batch * H + h) * T + i]) * dot_(do + at, o + at, D)
        dsinks[h] = dsinks[h] + total if a.accumulate else total


cdef void _backward_sinks(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t H = a.n[2]
    parallel_for(_sink_heads, a, H)


cdef _describe(
    KernelArgs* a, str where, const float[:, :] q, const float[:, :] k, const float[:, :] v,
    const float[:, :, ::1] lse, const int[::1] first, bint causal, scale, Py_ssize_t window,
    float cap, int n_threads, str precision, arrays,
):
    """Fill in the sizes, which follow from lse (B,H,T) and the columns of q and k; check shapes."""
    cdef Py_ssize_t B = lse.shape[0], H = lse.shape[1], T = lse.shape[2]
    cdef Py_ssize_t D = q.shape[1] // max(H, 1), KV = k.shape[1] // max(D, 1)
    if D == 0 or KV == 0 or H % KV:
        raise ValueError(
            f"{where}: lse (B, H, T) needs q (B*T, H*D), k (B*T, KV*D), D >= 1, KV that divides H; "
            f"got q ({q.shape[0]}, {q.shape[1]}), k ({k.shape[0]}, {k.shape[1]}), "
            f"lse ({B}, {H}, {T})"
        )
    shapes = {"q": (B * T, H * D), "k": (B * T, KV * D), "v": (B * T, KV * D)}
    shapes |= {"dq": shapes["q"], "dk": shapes["k"], "dv": shapes["v"]}
    shapes |= {"o": shapes["q"], "do": shapes["q"], "delta": (B, H, T), "sinks": (H,)}
    check(
        where, f"lse ({B}, {H}, {T}), {D} columns per head", n_threads, q=(q, shapes["q"]),
        k=(k, shapes["k"]), v=(v, shapes["v"]), **{n: (x, shapes[n]) for n, x in arrays.items()},
    )
    if first is not None:
        check(where, f"lse ({B}, {H}, {T})", n_threads, first=(first, (B * T,)))
        if not causal:
            raise ValueError(f"{where}: first needs causal=True: segments are causal")
        segments_within(T)(f"{where}: first", np.asarray(first))
    check_limits(where, window, cap, causal=causal)
    a.n[0], a.n[1], a.n[2], a.n[3], a.n[4] = B, T, H, KV, D
    a.n[5], a.n[6], a.n[7], a.n[8] = row_floats(q), row_floats(k), row_floats(v), causal
    a.n[9], a.n[10] = window, precision_index(where, precision)
    a.f[0], a.f[1] = 1 / sqrt(D) if scale is None else scale, cap
    a.n_threads = n_threads


def forward(
    float[:, ::1] o, float[:, :, ::1] lse, const float[:, :] q, const float[:, :] k,
    const float[:, :] v, const int[::1] first=None, const float[::1] sinks=None, bint causal=True,
    scale=None, Py_ssize_t window=0, float cap=0, int n_threads=1, str precision="highest",
):
    """Overwrite o (B*T, H*D) and lse (B,H,T) from q (B*T, H*D), k and v (B*T, KV*D).

    B, H and T are read off lse. Rows of q, k, v may be apart: they may be columns of one array.
    ``first`` (B*T,): where causal rows come in segments, the first row of each one's. ``sinks``
    (H,): of each head the score of a key without a value. ``scale`` is 1 / sqrt(D) if None. A row
    sees ``window`` keys, its own the last; 0: all before it. ``cap`` bounds the scores; 0: they
    have no bound.
    """
    cdef KernelArgs a
    _describe(
        &a, "attention.forward", q, k, v, lse, first, causal, scale, window, cap, n_threads,
        precision,
        {"o": o} if sinks is None else {"o": o, "sinks": sinks},
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(o), at3(lse), at_row(q), at_row(k), at_row(v)
    a.t[5] = ids1(first) if first is not None else NULL
    a.t[6] = at1(sinks) if sinks is not None else NULL
    with nogil:
        _forward(&a)


def backward(
    float[:, :] dq, float[:, :] dk, float[:, :] dv, float[:, :, ::1] delta,
    const float[:, ::1] do, const float[:, ::1] o, const float[:, :, ::1] lse,
    const float[:, :] q, const float[:, :] k, const float[:, :] v, const int[::1] first=None,
    bint causal=True, scale=None, Py_ssize_t window=0, float cap=0, int n_threads=1,
    str precision="highest",
):
    """Overwrite dq, dk, dv, shaped and strided like q, k, v, and delta (B,H,T).

    Those that are None are not computed; dq and dk need delta. do, o, lse, and what follows v, are
    as in forward.
    """
    cdef KernelArgs a
    written = {"dq": dq, "dk": dk, "dv": dv, "delta": delta}
    wanted = {name: x for name, x in written.items() if x is not None}
    _describe(
        &a, "attention.backward", q, k, v, lse, first, causal, scale, window, cap, n_threads,
        precision,
        {**wanted, "do": do, "o": o},
    )
    if delta is None and (dq is not None or dk is not None):
        raise ValueError("attention.backward: dq and dk need delta; got None")
    rows = {"dq": a.n[5], "dk": a.n[6], "dv": a.n[7]}
    if any(row_floats(wanted[name]) != rows[name] for name in rows.keys() & wanted.keys()):
        raise ValueError("attention.backward: dq, dk, dv need the row strides of q, k, v")
    a.t[0] = at_row(dq) if dq is not None else NULL
    a.t[1] = at_row(dk) if dk is not None else NULL
    a.t[2] = at_row(dv) if dv is not None else NULL
    a.t[3] = at3(delta) if delta is not None else NULL
    a.t[4], a.t[5], a.t[6] = at2(do), at2(o), at3(lse)
    a.t[7], a.t[8], a.t[9] = at_row(q), at_row(k), at_row(v)
    a.t[10] = ids1(first) if first is not None else NULL
    with nogil:
        _backward(&a)


def backward_sinks(
    float[::1] dsinks, const float[:, ::1] do, const float[:, ::1] o, const float[:, :, ::1] lse,
    const float[::1] sinks, bint accumulate=False, int n_threads=1,
):
    """Overwrite dsinks (H,), or add to it, from do, o (B*T, H*D), lse (B,H,T) and sinks."""
    cdef KernelArgs a
    cdef Py_ssize_t B = lse.shape[0], H = lse.shape[1], T = lse.shape[2]
    cdef Py_ssize_t D = o.shape[1] // max(H, 1)
    check(
        "attention.backward_sinks", f"lse ({B}, {H}, {T}), {D} columns per head", n_threads,
        dsinks=(dsinks, (H,)), do=(do, (B * T, H * D)), o=(o, (B * T, H * D)), sinks=(sinks, (H,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at1(dsinks), at2(do), at2(o), at3(lse), at1(sinks)
    a.n[0], a.n[1], a.n[2], a.n[3] = B, T, H, D
    a.accumulate, a.n_threads = accumulate, n_threads
    with nogil:
        _backward_sinks(&a)


_SIZES = "B T H KV D ldq ldk ldv causal window precision"
_OPTIONS = "scale cap"

entries = {
    "forward": entry(_forward, "o lse q k v first? sinks?", sizes=_SIZES, options=_OPTIONS),
    "backward": entry(
        _backward, "dq? dk? dv? delta? do o lse q k v first?", sizes=_SIZES, options=_OPTIONS
    ),
    "backward_sinks": entry(_backward_sinks, "dsinks do o lse sinks", sizes="B T H D"),
}
