"""The three products of a linear layer, with bias and GELU applied while a block is in cache.

    forward           y[m,n]  = act(sum_k x[m,k] w[n,k] + b[n]);  pre = the argument of act
    backward_input    dx[m,k] = sum_n dy[m,n] w[n,k]
    backward_weight   dw[n,k] = sum_m dy[m,n] x[m,k]

Read from the bottom up. bench/rungs/product.c has the ideas in 100 lines: tile, packing, cache
blocks. Then come the same in use: tn_tile_body and packing in gemm.c, the loops in _loops.pxd
(LOOP 1 and 2 first), and in _product.pxd the sides of a product and the table that decides how it
is computed. This file only calls them.

M rows (B*T flattened), N outputs, K inputs. Saved for backward: pre, if there is an activation.
_product.pxd says along which axis each operand is read, and how each shape is computed in each
precision. The loops are in _loops.pxd, packing and the tile of floats in gemm.c. A program may keep
w prepacked (prepacked.pyx), and may have backward_weight sum the squares of dw by tile
(_squares.pxd).

For forward and backward_input w may have any type of _types.pxd. A quantized w is dequantized
while it is packed; the results are, bit for bit, those of its float32 values.

"medium" rounds both sides to bfloat16 while they are packed, if multiplies_pairs(). Products of up
to 16 rows of x by w in Q4_0, Q8_0, Q4_K or Q6_K differ. For them "medium" rounds x to 8 bits, if
multiplies_int8() (dot_int8.h). At the level amx each precision packs one to three bfloat16 parts of
each float (gemm_amx.c). "int8" is like "medium", except for quantized w. Then, if
multiplies_quads(), both sides are rounded to 8 bits while they are packed (gemm_int8.h). All else
is float32.
Source: Van Zee & van de Geijn 2015 (BLIS), doi:10.1145/2764454.
"""
from libc.string cimport memset

from toynn._kernels.gemm._direct cimport multiply_gemv, multiply_skinny, multiply_small
from toynn._kernels.gemm._int8 cimport HAS_INT8, UNITS_OF_BUILD
from toynn._kernels.gemm._loops cimport loops_floats, multiply_in_loops, multiply_with_resident
from toynn._kernels.gemm._prepacked cimport read_prepacked
from toynn._kernels.gemm._product cimport (
    BACKWARD_INPUT, BACKWARD_WEIGHT, CODES_UNIT, FORWARD, GAINS_BY_PAIRS, GEMV, GEMV_INT8,
    HAS_TILES, PANELS, PANELS_RESIDENT, SKINNY, SMALL, Activation, Product, gemv_floats, is_packed,
    product_of, units,
)
from toynn._kernels.gemm._squares cimport can_sum_squares
from toynn._kernels.base.abi cimport kernel_fn, scratch_fn
from toynn._kernels.args.matmul cimport BackwardInput, BackwardWeight, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base.cpu import int8_unit

# kept: from toynn._kernels.gemm._prepacked cimport Prepacked
# kept: from toynn._kernels.gemm._squares cimport Squares

cdef int _units = units()


ctypedef fused Args:
    Forward
    BackwardInput
    BackwardWeight


cdef inline Product _product(Args* a) noexcept nogil:
    cdef Product p
    if Args is Forward:
        p = product_of(
            FORWARD, a.y if a.pre == NULL else a.pre, a.x, a.w, a.M, a.N, a.K, a.type,
            a.precision, _units,
        )
        p.y, p.bias, p.activation = a.y, a.b, <Activation>a.activation
        read_prepacked(&p, a.kept)
    elif Args is BackwardInput:
        p = product_of(
            BACKWARD_INPUT, a.dx, a.dy, a.w, a.M, a.N, a.K, a.type, a.precision, _units
        )
        p.add = a.accumulate
        read_prepacked(&p, a.kept)
    else:
        p = product_of(
            BACKWARD_WEIGHT, a.dw, a.dy, a.x, a.M, a.N, a.K, 0, a.precision, _units
        )
        p.add = a.accumulate
        if a.kept != NULL:
            a.kept.valid = can_sum_squares(&p)
            p.squares = a.kept.sums if a.kept.valid else NULL
    return p


cdef void _multiply(Args* a) noexcept nogil:
    cdef Product p = _product(a)
    if p.a.size == 0 or p.b.size == 0:
        return
    if p.K == 0 and not p.add:
        memset(p.c, 0, p.a.size * p.b.size * sizeof(float))
    if p.way == GEMV_INT8 or p.way == GEMV:
        multiply_gemv(&p, a.workspace, a.n_threads)
    elif p.way == SKINNY:
        multiply_skinny(&p, a.n_threads)
    elif p.way == SMALL:
        multiply_small(&p)
    elif p.way == PANELS:
        multiply_in_loops(&p, a.workspace, a.n_threads)
    elif p.way == PANELS_RESIDENT:
        multiply_with_resident(&p, a.workspace, a.n_threads)


cdef Py_ssize_t _scratch(Args* a) noexcept nogil:
    cdef Product p = _product(a)
    cdef Py_ssize_t floats = loops_floats(&p, a.n_threads) if is_packed(&p) else 0
    if Args is Forward:  # a run may have fewer rows, which are rounded to 8 bits
        floats = max(floats, gemv_floats(FORWARD, a.M, a.K, a.type, a.precision, _units))
    return floats * sizeof(float)


def multiplies_pairs():
    """Whether "medium" multiplies bfloat16 pairs instead of floats, at this level on this CPU."""
    return bool(_units & GAINS_BY_PAIRS)


def multiplies_int8():
    """Return the unit that multiplies a few rows in 8 bits in "medium", as "AVX2"; "" if none."""
    return int8_unit(UNITS_OF_BUILD) if HAS_INT8 else ""


def multiplies_quads():
    """Return the unit that multiplies by quantized w in 8 bits in "int8"; "" if none."""
    if _units < CODES_UNIT:
        return ""
    return "AMX_INT8" if HAS_TILES else multiplies_int8()


def multiplies_tiles():
    """Whether this level multiplies bfloat16 parts of floats in the tiles of AMX."""
    return bool(HAS_TILES)


forward = entry(
    <kernel_fn>_multiply[Forward],
    "y[M N]; pre[M N]? <- x[M K] type w[N K] b[N]? "
    "| precision=highest activation=none type=F32 kept Prepacked",
    <scratch_fn>_scratch[Forward],
)
backward_input = entry(
    <kernel_fn>_multiply[BackwardInput],
    "dx[M K]+ <- dy[M N] type w[N K] | precision=highest type=F32 kept Prepacked",
    <scratch_fn>_scratch[BackwardInput],
)
backward_weight = entry(
    <kernel_fn>_multiply[BackwardWeight],
    "dw[N K]+ <- dy[M N] x[M K] | precision=highest kept Squares",
    <scratch_fn>_scratch[BackwardWeight],
)
