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

from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.base.abi cimport kernel_fn
from toynn._kernels.args.latent cimport Absorb, Expand
from toynn._kernels.base.entry cimport entry
from toynn._kernels.gemm._gemm cimport multiply
from toynn._kernels.gemm._product cimport Operand, floats_at, stored_as
from toynn._kernels.quants._types cimport Type, row_bytes, type_of

cdef enum:
    ROWS = 64  # of x in one product, so that its operands stay in cache
    SMALL = 1 << 15  # multiplications; up to here, waking threads costs more than it saves


cdef inline void columns_head(
    float* y, const float* x, Py_ssize_t D, Py_ssize_t first
) noexcept nogil:
    memcpy(y, x + first, D * sizeof(float))


cdef inline void columns_backward_head(
    float* dx, const float* dy, Py_ssize_t W, Py_ssize_t D, Py_ssize_t first
) noexcept nogil:
    memset(dx, 0, W * sizeof(float))
    memcpy(dx + first, dy, D * sizeof(float))


cdef inline void join_row(
    float* y, const float* a, const float* b, Py_ssize_t H, Py_ssize_t P, Py_ssize_t R,
    Py_ssize_t G,
) noexcept nogil:
    cdef Py_ssize_t h
    for h in range(H):
        memcpy(y + h * (P + R), a + h * P, P * sizeof(float))
        memcpy(y + h * (P + R) + P, b + h * G // H * R, R * sizeof(float))


cdef inline void join_backward_row(
    float* da, float* db, const float* dy, Py_ssize_t H, Py_ssize_t P, Py_ssize_t R, Py_ssize_t G
) noexcept nogil:
    cdef Py_ssize_t h, r
    if G * R:
        memset(db, 0, G * R * sizeof(float))
    for h in range(H):
        memcpy(da + h * P, dy + h * (P + R), P * sizeof(float))
        for r in range(R):
            db[h * G // H * R + r] += dy[h * (P + R) + P + r]


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


columns = entry("heads N*H: y[N H D] <- x[N H W] | first=0", _within)
columns_backward = entry("heads N*H: dx[N H W] <- dy[N H D] | first=0", _within)
join = entry("rows N: y[N H P+R] <- a[N H P] b[N G R]", _shared)
join_backward = entry("rows N: da[N H P] db[N G R] <- dy[N H P+R]", _shared)
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
