"""The products of a linear layer as C = A B, and how each is computed.

    FORWARD           y  = x w^T      rows of x by rows of w, which run along the sums
    BACKWARD_INPUT    dx = dy w       rows of dy by columns of w
    BACKWARD_WEIGHT   dw = dy^T x     columns of dy by columns of x

C is (M,N), A (M,K), B (K,N); here these letters are sizes of the product, not of the layer. w may
have any type of _types.pxd.
"""
from toynn._kernels.gemm._int8 cimport (
    HAS_INT8, UNITS_OF_BUILD, dot_fn, dot_int8_of, in_int8, int8_floats,
)
from toynn._kernels.gemm._panels cimport (
    FLOATS, HAS_PAIRS, HAS_TILES, MR, PAIRS, QUADS, SIDE, TILES_1, UNITS_OF_QUADS, V, Form,
    Operand, blocks_of, floats_at, in_tiles, is_floats, kept_floats, stored_as, terms_per_pass,
)

cdef enum:
    HIGH = 1    # in toynn.numerics.precision.PRECISIONS
    MEDIUM = 2
    IN_INT8 = 3

cdef enum:
    GEMV_ROWS = 3          # up to so many rows of x, packing w costs more time than it saves
    GEMV_INT8_ROWS = 16    # the same if they are rounded to 8 bits
    SMALL_TO = 1 << 21     # up to so many multiplications (20 us), threads and packing do not pay
    SMALL_TO_TILES = 1 << 14  # the same for tiles of one part: they are 16 times as fast
    LARGE_C = 1 << 17      # elements of C (512 KB) that do not stay in L2 from one pass to the next
    ALL_TERMS = 3 << 19    # most floats of the smaller side, packed with all its terms (6 MB)

cdef enum Unit:
    GAINS_BY_PAIRS = 1  # multiplying pairs of bfloat16 pays
    INT8 = 2            # some unit multiplies 8-bit integers
    INT8_UNIT = 4       # times the number of that unit: 0, 1 or 2 of dot_int8.h
    INT8_TILES = 16     # this level multiplies 8-bit integers in the tiles of AMX

cdef enum Entry:
    FORWARD
    BACKWARD_INPUT
    BACKWARD_WEIGHT

cdef enum Way:       # see decide()
    GEMV_INT8
    GEMV
    SKINNY
    SMALL
    PANELS           # this and the next pack both sides
    PANELS_RESIDENT  # the smaller side is packed once, with all its terms

cdef enum Activation:
    NONE
    GELU_TANH
    GELU_EXACT

cdef struct Product:
    Way way
    Operand a
    Operand b
    Py_ssize_t K  # length of the sums
    float* c
    bint add
    dot_fn int8   # for GEMV_INT8: multiplies quantized rows of w
    int int8_unit  # the unit that it uses
    # What happens to a finished element: y = act(c += bias). y may be c.
    const float* bias
    float* y
    Activation activation
    float* squares  # sums of squares of the finished tiles; NULL: not wanted


cdef inline int units():
    """The units of this CPU that this build can use, as bits of enum Unit."""
    from toynn._kernels.base.cpu import INT8_UNITS, amx_int8, gains_by_pairs, int8_unit
    int8 = int8_unit(UNITS_OF_BUILD) if HAS_INT8 else ""
    pairs = GAINS_BY_PAIRS if HAS_PAIRS and gains_by_pairs() else 0
    tiles = INT8_TILES if HAS_TILES and amx_int8() else 0
    return pairs | tiles | (INT8 | INT8_UNIT * INT8_UNITS[int8] if int8 else 0)


cdef inline int int8_unit_of(int units) noexcept nogil:
    """The number of the unit that multiplies 8-bit integers, in dot_int8.h."""
    return units // INT8_UNIT & 3


cdef inline bint rounds_gemv(
    Entry which, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Whether the rows of x, if GEMV_INT8_ROWS or fewer, are rounded to 8 bits."""
    return which == FORWARD and precision >= MEDIUM and units & INT8 and in_int8(type)


cdef inline int quads_unit(int units) noexcept nogil:
    """The unit that multiplies quads, in gemm_int8.h; -1 if none does."""
    if HAS_TILES:
        return 2 if units & INT8_TILES else -1
    return int8_unit_of(units) if units & INT8 and UNITS_OF_QUADS >> int8_unit_of(units) & 1 else -1


cdef inline bint rounds_panels(
    Entry which, const Operand* w, Py_ssize_t precision, int units
) noexcept nogil:
    """Whether both sides are rounded to 8 bits while they are packed."""
    cdef bint quantized = which != BACKWARD_WEIGHT and w.type.values > 1
    return precision == IN_INT8 and quantized and quads_unit(units) >= 0


cdef inline Py_ssize_t gemv_floats(
    Entry which, Py_ssize_t M, Py_ssize_t K, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Floats of scratch memory for GEMV_INT8 in runs of up to M rows; 0 if no row is rounded."""
    if not rounds_gemv(which, type, precision, units):
        return 0
    return int8_floats(min(M, <Py_ssize_t>GEMV_INT8_ROWS), K)


cdef inline void decide(
    Product* p, Entry which, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Choose the way of a product and the form of its panels: the first row that fits.

        product                                                 way              computed in
        forward, M <= 16, medium, w Q4_0 Q8_0 Q4_K Q6_K, INT8   GEMV_INT8        8-bit integers
        forward, M <= 3                                         GEMV             float32
        M <= MR or N <= V, B need not be packed                 SKINNY           float32
        M <= MR or N <= V, M N K <= 2^21                        SMALL            float32
        M <= MR or N <= V                                       PANELS           float32
        int8, w quantized, quads_unit, M N K > 2^21             PANELS           8-bit integers
        tiles, medium, K >= 32, M N K > 2^14                    PANELS *         1 part of bfloat16
        tiles, high, K >= 64, M N K > 2^21                      PANELS *         2 parts
        tiles, highest, the same, M N >= 32 (M + N)             PANELS *         3 parts
        M N K <= 2^21                                           SMALL            float32
        medium, CPU gains by pairs                              PANELS           pairs of bfloat16
        all else                                                PANELS           float32

    GEMV reads w once, in order. SKINNY and SMALL pack nothing in advance: SKINNY runs on all
    threads, SMALL on one. If a side is a single panel, packing would take most of the time. So with
    SKINNY a thread takes a share of the longer side as it is. "tiles" means the level amx. "int8"
    counts as "medium" in all other rows. PANELS * is PANELS, or PANELS_RESIDENT on three
    conditions. There are several passes; C does not stay in L2 between them; all panels of the
    smaller side fit into L3. The choice depends on sizes, type, precision and CPU alone, because
    the bits of the result depend on it.
    """
    cdef Py_ssize_t M = p.a.size, N = p.b.size, K = p.K
    cdef bint small = M * N * K <= SMALL_TO, tiles = False
    cdef bint quads = rounds_panels(which, &p.b, precision, units)
    cdef const Operand* smaller
    precision = min(precision, <Py_ssize_t>MEDIUM)
    p.int8, p.int8_unit = NULL, 0
    if M <= GEMV_INT8_ROWS and rounds_gemv(which, type, precision, units):
        p.way, p.int8_unit = GEMV_INT8, int8_unit_of(units)
        p.int8 = dot_int8_of(type, p.int8_unit)
    elif which == FORWARD and M <= GEMV_ROWS:
        p.way = GEMV
    elif M <= MR or N <= V:
        p.way = SMALL if small else PANELS
        if N <= V or (is_floats(&p.b) and p.b.stride == 1):
            p.way = SKINNY
    elif quads and not small:
        p.way = PANELS
        p.a.form = p.b.form = <Form>(QUADS + quads_unit(units))
        p.a.by_chance = which == BACKWARD_INPUT
    else:
        if HAS_TILES and precision == MEDIUM:
            tiles = K >= SIDE and M * N * K > SMALL_TO_TILES
        elif HAS_TILES and K >= 2 * SIDE and not small:
            tiles = precision == HIGH or M * N >= SIDE * (M + N)
        if tiles:
            p.a.form = p.b.form = <Form>(TILES_1 + MEDIUM - precision)
            smaller = &p.a if M <= N else &p.b
            p.way = PANELS
            if K > terms_per_pass(&p.a) and M * N > LARGE_C:
                if _all_terms(smaller, K) <= ALL_TERMS:
                    p.way = PANELS_RESIDENT
        elif small:
            p.way = SMALL
        else:
            p.way = PANELS
            if precision == MEDIUM and units & GAINS_BY_PAIRS:
                p.a.form = p.b.form = PAIRS


cdef inline Py_ssize_t _all_terms(const Operand* side, Py_ssize_t K) noexcept nogil:
    """Floats of a packed side with all its terms, the last pass padded to full length."""
    cdef Py_ssize_t most = terms_per_pass(side)
    return kept_floats(side, blocks_of(K, most) * most)


cdef inline bint is_packed(const Product* p) noexcept nogil:
    return p.way >= PANELS


cdef inline bint can_sum_squares(const Product* p) noexcept nogil:
    """Whether the product's tiles are those of _squares.pxd."""
    return is_packed(p) and in_tiles(&p.a) == HAS_TILES


cdef inline Operand weights_of(
    Entry which, const void* w, Py_ssize_t N, Py_ssize_t K, Py_ssize_t type
) noexcept nogil:
    """w (N,K) of the layer as operand B of FORWARD or BACKWARD_INPUT."""
    if which == FORWARD:
        return stored_as(type, w, N, K, True)
    return stored_as(type, w, K, K, False)


cdef inline Product product_of(
    Entry which, float* c, const float* a, const void* b, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K,
    Py_ssize_t type, Py_ssize_t precision, int units,
) noexcept nogil:
    """The product of an entry; M, N and K are those of the layer, ``units`` bits of enum Unit."""
    cdef Product p
    p.c = p.y = c
    p.bias = p.squares = NULL
    p.activation = NONE
    p.add = False
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
    decide(&p, which, type, precision, units)
    return p
