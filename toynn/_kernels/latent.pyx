"""Kernels for latent attention: slice and join heads, and multiply each head by its rows of w.

    y[n,h,d]  = x[n,h,first+d]                               columns: D of the W of a head
    dx[n,h,w] = dy[n,h,w-first], 0 elsewhere                 columns_backward
    y[n,h,:]  = (a[n,h,:] | b[n,g,:])    g = h G / H         join: P, then R of one of G heads
    da[n,h,p] = dy[n,h,p],  db[n,g,r] = sum_h dy[n,h,P+r]    join_backward

    y[n,h,c]  = sum_d x[n,h,d] w[g,first+d,c]                absorb, in generation alone
    y[n,h,d]  = sum_c x[n,h,c] w[g,first+d,c]                expand, likewise

N rows of H heads. Keys k = (W_k c | r) and values v = W_v c are computed from a latent c and from
r; all heads share both. w holds the rows of W_k and W_v, head by head. So scores and outputs are

    q . k = q_1 . W_k c + q_2 . r = (q_1 W_k) . c + q_2 . r          o = W_v sum_j p_j c_j

So attention over a cache of latents gives the same result as over keys and values. Queries absorb
W_k before attention, and W_v expands its output. w may be of any type of _types.pxd. With G = 1 all
heads share it. Arrays are float32 and C-contiguous; outputs are overwritten and alias no input.
Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.latent cimport (
    Absorb, Columns, ColumnsBackward, Expand, Join, JoinBackward,
)
from toynn._kernels.entry cimport entry
from toynn._kernels.gemm._gemm cimport multiply
from toynn._kernels.gemm._panels cimport Operand, floats_at, stored_as
from toynn._kernels.quants._types cimport Type, row_bytes, type_of

cdef enum:
    ROWS = 64  # of x in one product, so that its operands stay in cache
    SMALL = 1 << 15  # multiplications; up to here, waking threads costs more than it saves


cdef void _columns_rows(Columns* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(begin * a.H, end * a.H):
        memcpy(a.y + i * a.D, a.x + i * a.W + a.first, a.D * sizeof(float))


cdef void _columns(Columns* a) noexcept nogil:
    parallel_for(<part_fn>_columns_rows, a, a.N if a.D else 0)


cdef void _columns_backward_rows(
    ColumnsBackward* a, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    cdef Py_ssize_t i
    memset(a.dx + begin * a.H * a.W, 0, (end - begin) * a.H * a.W * sizeof(float))
    for i in range(begin * a.H, end * a.H):
        memcpy(a.dx + i * a.W + a.first, a.dy + i * a.D, a.D * sizeof(float))


cdef void _columns_backward(ColumnsBackward* a) noexcept nogil:
    parallel_for(<part_fn>_columns_backward_rows, a, a.N if a.W else 0)


cdef void _join_rows(Join* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t n, h
    cdef float* y
    for n in range(begin, end):
        for h in range(a.H):
            y = a.y + (n * a.H + h) * (a.P + a.R)
            memcpy(y, a.a + (n * a.H + h) * a.P, a.P * sizeof(float))
            memcpy(y + a.P, a.b + (n * a.G + h * a.G // a.H) * a.R, a.R * sizeof(float))


cdef void _join(Join* a) noexcept nogil:
    parallel_for(<part_fn>_join_rows, a, a.N)


cdef void _join_backward_rows(JoinBackward* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t n, h, r
    cdef const float* dy
    cdef float* db
    for n in range(begin, end):
        if a.G * a.R:
            memset(a.db + n * a.G * a.R, 0, a.G * a.R * sizeof(float))
        for h in range(a.H):
            dy = a.dy + (n * a.H + h) * (a.P + a.R)
            db = a.db + (n * a.G + h * a.G // a.H) * a.R
            memcpy(a.da + (n * a.H + h) * a.P, dy, a.P * sizeof(float))
            for r in range(a.R):
                db[r] += dy[a.P + r]


cdef void _join_backward(JoinBackward* a) noexcept nogil:
    parallel_for(<part_fn>_join_backward_rows, a, a.N)


ctypedef fused Product:
    Absorb
    Expand


cdef inline void _head(Product* a, Py_ssize_t n, Py_ssize_t h) noexcept nogil:
    """Multiply rows n to n + ROWS - 1 (or the last) of head h by the head's rows of w."""
    cdef Py_ssize_t rows = min(ROWS, a.N - n), row = h * a.G // a.H * a.W + a.first
    cdef Py_ssize_t inner, outer
    cdef Type type = type_of(a.type)
    cdef const void* w = <const char*>a.w + row * row_bytes(&type, a.C)
    cdef Operand left, right
    if Product is Absorb:
        inner, outer = a.D, a.C
        right = stored_as(a.type, w, a.C, a.C, False)
    else:
        inner, outer = a.C, a.D
        right = stored_as(a.type, w, a.D, a.C, True)
    left = floats_at(a.x + (n * a.H + h) * inner, rows, a.H * inner, 1, True)
    multiply(a.y + (n * a.H + h) * outer, a.H * outer, &left, &right, inner, False)


cdef void _heads(Product* a, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(begin, end):
        _head(a, i // a.H * ROWS, i % a.H)


cdef void _multiply(Product* a) noexcept nogil:
    cdef Product few = a[0]
    if a.N * a.H * a.D * a.C <= SMALL:
        few.n_threads = 1
    parallel_for(<part_fn>_heads[Product], &few, (a.N + ROWS - 1) // ROWS * a.H)


def _within(where, arrays, sizes, options):
    D, W, first = (sizes[name] for name in ("D", "W", "first"))
    if not 0 <= first <= W - D:
        raise ValueError(f"{where}: needs first in 0..{W - D}, {D} of {W} columns; got {first}")


def _shared(where, arrays, sizes, options):
    H, G = sizes["H"], sizes["G"]
    if H and (G < 1 or H % G):
        raise ValueError(f"{where}: needs G that divides the {H} heads; got {G}")


def _product(where, arrays, sizes, options):
    _within(where, arrays, sizes, options)
    _shared(where, arrays, sizes, options)
    if sizes["C"] < 1 or sizes["D"] < 1:
        raise ValueError(f"{where}: needs C and D of 1 or more; got {sizes['C']} and {sizes['D']}")


columns = entry(<kernel_fn>_columns, "y[N H D] <- x[N H W] | first=0", NULL, _within)
columns_backward = entry(
    <kernel_fn>_columns_backward, "dx[N H W] <- dy[N H D] | first=0", NULL, _within
)
join = entry(<kernel_fn>_join, "y[N H P+R] <- a[N H P] b[N G R]", NULL, _shared)
join_backward = entry(
    <kernel_fn>_join_backward, "da[N H P] db[N G R] <- dy[N H P+R]", NULL, _shared
)
absorb = entry(
    <kernel_fn>_multiply[Absorb],
    "y[N H C] <- x[N H D] type w[G*W C] | W first=0 type=F32",
    NULL, _product,
)
expand = entry(
    <kernel_fn>_multiply[Expand],
    "y[N H D] <- x[N H C] type w[G*W C] | W first=0 type=F32",
    NULL, _product,
)
