"""The three products of a linear layer as C = A B: which operand is read along which axis.

    FORWARD           y  = x w^T      rows of x by rows of w, which run along the sums
    BACKWARD_INPUT    dx = dy w       rows of dy by columns of w
    BACKWARD_WEIGHT   dw = dy^T x     columns of dy by columns of x

w (N,K) may be stored in blocks. The numbers that are multiplied are floats, but for products that
are neither small nor thin nor of a few rows: these use what bfloat16 the precision calls for.
"""
from toynn._kernels.gemm._blocked cimport (
    FEW, FEW_IN_INT8, NONE, SMALL_TILES, Product, is_small, is_thin,
)
from toynn._kernels.gemm._int8 cimport HAS_INT8, VNNI_OF_BUILD, dot_int8_of, in_int8
from toynn._kernels.gemm._panels cimport HAS_PAIRS, HAS_TILES, SIDE, Operand, floats_at, stored_as

cdef enum:
    HIGH = 1    # in toynn.precision.PRECISIONS
    MEDIUM = 2

cdef enum Unit:
    PAIRS = 1   # of bfloat16, and multiplying them pays
    INT8 = 2    # 8-bit integers
    VNNI = 4    # and by vpdpbusd

cdef enum Entry:
    FORWARD
    BACKWARD_INPUT
    BACKWARD_WEIGHT


cdef inline int units():
    """The units of this CPU, as far as this build has instructions for them."""
    from toynn._kernels.cpu import gains_by_pairs, int8_unit
    int8 = int8_unit(VNNI_OF_BUILD) if HAS_INT8 else ""
    pairs = HAS_PAIRS and gains_by_pairs()
    return (PAIRS if pairs else 0) | (INT8 if int8 else 0) | (VNNI if "VNNI" in int8 else 0)


cdef inline bint rounds_few(
    Entry which, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Whether up to FEW_IN_INT8 rows are rounded to 8 bits."""
    return which == FORWARD and precision == MEDIUM and units & INT8 and in_int8(type)


cdef inline bint _suits_tiles(const Product* p, Py_ssize_t precision) noexcept nogil:
    """Whether tiles are worth packing for: by the sizes alone, since bits depend on it."""
    cdef Py_ssize_t M = p.a.size, N = p.b.size
    if precision == MEDIUM:
        return p.K >= SIDE and M * N * p.K > SMALL_TILES
    if p.K < 2 * SIDE or is_small(p):
        return False
    return precision == HIGH or M * N >= SIDE * (M + N)


cdef inline Operand weights_of(
    Entry which, const void* w, Py_ssize_t N, Py_ssize_t K, Py_ssize_t type
) noexcept nogil:
    """w (N,K) as operand B of FORWARD or BACKWARD_INPUT."""
    if which == FORWARD:
        return stored_as(type, w, N, K, True)
    return stored_as(type, w, K, K, False)


cdef inline Product product_of(
    Entry which, float* c, const float* a, const void* b, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K,
    Py_ssize_t type, Py_ssize_t precision, int units,
) noexcept nogil:
    """The product of an entry; ``units``: what this CPU has beside its level, of enum Unit."""
    cdef Product p
    p.c = p.y = c
    p.bias = p.squares = NULL
    p.activation = NONE
    p.add = False
    p.int8 = NULL
    if M <= FEW_IN_INT8 and rounds_few(which, type, precision, units):
        p.int8 = dot_int8_of(type, units & VNNI != 0)
    p.few = which == FORWARD and (M <= FEW or p.int8 != NULL)
    if which == FORWARD:
        p.a = floats_at(a, M, K, 1, True)
        p.b = weights_of(which, b, N, K, type)
        p.K = K
    elif which == BACKWARD_INPUT:
        p.a = floats_at(a, M, N, 1, True)
        p.b = weights_of(which, b, N, K, type)
        p.K = N
    else:
        p.a = floats_at(a, N, 1, N, True)
        p.b = floats_at(<const float*>b, K, 1, K, False)
        p.K = M
    if p.few or is_thin(&p):
        return p
    if HAS_TILES and _suits_tiles(&p, precision):
        p.a.parts = p.b.parts = 3 - precision  # highest 3, high 2, medium 1
    elif not is_small(&p):
        p.a.pairs = p.b.pairs = units & PAIRS and precision == MEDIUM
    return p
