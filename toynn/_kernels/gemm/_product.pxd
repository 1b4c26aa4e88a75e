"""The products of a linear layer as C = A B: their sides, their panels, and how each is computed.

    FORWARD           y  = x w^T      rows of x by rows of w, which run along the sums
    BACKWARD_INPUT    dx = dy w       rows of dy by columns of w
    BACKWARD_WEIGHT   dw = dy^T x     columns of dy by columns of x

C is (M,N), A (M,K), B (K,N); here these letters are sizes of the product, not of the layer. Either
side may be stored in either order. An Operand says how far apart its rows (of A) or columns (of B)
are, and how far apart successive k. Each side is cut into panels as wide as a tile of C. Panels are
packed in the order in which a tile reads them.

What panels hold is a Form: floats (gemm.c), or what packing makes of floats, such as pairs of
bfloat16 (gemm_bf16.c, gemm_neon.c), parts of bfloat16 for tiles (gemm_amx.c), or 8-bit codes
(gemm_int8.h). A form is one constant. The loops know nothing else of it.

B may have any type of _types.pxd; its rows run along k or across it. It is dequantized while it is
packed, a stretch of a row at a time. So only the panels in use are ever float32. Panels that share
a block are packed together, so that the block is dequantized once.

A side that does not change may be prepacked (prepacked.pyx): its panels are read in place.
"""
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t
from libc.string cimport memset

from toynn._kernels.gemm._int8 cimport (
    HAS_INT8, LINE, UNITS_OF_BUILD, dot_fn, dot_int8_of, in_int8, int8_floats,
)
from toynn._kernels.quants._blocks cimport RUN
from toynn._kernels.quants._types cimport F32, Type, dequantize, row_bytes, type_of

cdef extern from "gemm.h" nogil:
    enum:
        V "TN_V"    # floats in a register
        MR "TN_MR"  # rows of a tile of floats
        NR "TN_NR"  # columns of a tile of any form
    void prefetch "tn_prefetch" (const void* x, ptrdiff_t nbytes) noexcept

cdef extern from "forms.h" nogil:
    enum:
        KC "TN_KC"      # terms of a pass of floats
        SIDE "TN_SIDE"  # most rows of a tile, and terms of a step that is not of codes
    bint HAS_PAIRS "TN_PAIRS"
    bint HAS_TILES "TN_TILES"  # whether this build multiplies in the tiles of AMX
    int UNITS_OF_CODES "TN_CODE_UNITS"  # units that this build multiplies codes with, as bits

    # n rows or columns of kc terms, x[i * stride + k * k_stride]. One of the strides is 1. `row`
    # and `k` are the numbers of the first row and term.
    ctypedef struct Piece "tn_piece":
        const float* x
        Py_ssize_t n, stride, k_stride, kc, row, k

    # How one side is packed. Terms follow each other in steps; what an edge lacks is packed as 0.
    ctypedef struct Side "tn_side":
        int width  # rows of a panel of A, at most, or columns of one of B
        int step   # floats of a step of a panel
        int head   # floats before the first step: scales, for which all terms are packed at once
        int spare  # floats behind the last step that packing may overwrite
        bint even  # panels have nearly the same width; otherwise all but the last are whole
        void (*pack)(float* y, const Piece* piece) noexcept nogil

    ctypedef struct Form "tn_form":
        int number      # by which a program knows it: see tn_form_of
        int terms       # of a step
        int pass_terms  # of a pass: packed at a time
        int group       # floats of packed panels that stay in L2
        bint by_rows    # C is walked along its rows
        Side a
        Side b
        # C (h, NR) (+)= packed A times packed B, in so many steps.
        void (*multiply)(
            int h, Py_ssize_t steps, const float* a, const float* b, float* c, Py_ssize_t ldc,
            bint add,
        ) noexcept nogil
        # Round a matrix, its rows ld floats apart, without packing it: terms run along the rows, or
        # across them. Pairs of terms of row r, along, begin at y + r ld; across, y + p ld has pair
        # p of all columns. NULL: only panels can be multiplied.
        void (*round)(
            float* y, const float* x, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t columns,
            bint across,
        ) noexcept nogil
        # multiply, but rows of A, and its steps, are that far apart.
        void (*multiply_rounded)(
            int h, Py_ssize_t steps, const float* a, Py_ssize_t a_row, Py_ssize_t a_k,
            const float* b, float* c, Py_ssize_t ldc, bint add,
        ) noexcept nogil
        # Whether two panels may be multiplied. If not, they are as floats. NULL: any two may.
        bint (*fits)(Py_ssize_t steps, const float* a, const float* b) noexcept nogil
        void (*begin)() noexcept nogil  # what a thread does before it multiplies; NULL: nothing
        void (*end)() noexcept nogil    # and after it

    const Form* FLOATS "(&tn_form_floats)"
    const Form* PAIRS "TN_FORM_PAIRS"  # this and the next are NULL if this build has none
    const Form* SQUARES "TN_FORM_SQUARES"  # its panels cut a gradient whose squares are summed
    const Form* form_of_parts "TN_FORM_PARTS" (int parts) noexcept
    const Form* form_of_codes "tn_codes_of" (int unit, bint by_chance) noexcept
    const Form* form_of "tn_form_of" (Py_ssize_t number) noexcept

cdef enum:
    STRETCH = 256  # values of a row dequantized at a time, if it runs across k: whole panels
    TOGETHER = 8   # rows across k, or those of a step, that are packed for all panels at a time
    AHEAD = 8      # how many rows ahead of dequantizing a row is fetched into cache

cdef struct Operand:
    const float* x
    Py_ssize_t size    # rows of A, or columns of B
    Py_ssize_t stride  # between rows of A, or columns of B
    Py_ssize_t k_stride
    bint is_a
    const Form* form   # in which it is packed
    Py_ssize_t panels  # into which the form cuts it
    Py_ssize_t low     # rows or columns of a panel,
    Py_ssize_t higher  # and how many panels, the first ones, have one more
    # If type is not F32, x points at bytes; strides count values, as if they were floats.
    Type type
    Py_ssize_t row_bytes
    bint along_k         # a row is one column of B; otherwise it has the values of one k
    const float* packed  # prepacked panels of the whole side, see kept_start; NULL: none


cdef inline float* aligned(void* buffer) noexcept nogil:
    """The first cache line that begins in the buffer."""
    return <float*>((<size_t>buffer + 63) & ~<size_t>63)


cdef inline Py_ssize_t blocks_of(Py_ssize_t size, Py_ssize_t most) noexcept nogil:
    """How many blocks of at most ``most`` make ``size``."""
    return (size + most - 1) // most


cdef inline Operand floats_at(
    const float* x, Py_ssize_t size, Py_ssize_t stride, Py_ssize_t k_stride, bint is_a
) noexcept nogil:
    """A side of floats, which is packed as floats."""
    cdef Operand side = Operand(
        x, size, stride, k_stride, is_a, FLOATS, 0, 0, 0, type_of(F32), 0, False, NULL
    )
    resize(&side, size)
    return side


cdef inline void _cut(Operand* side, Py_ssize_t width, bint even) noexcept nogil:
    """Cut a side into panels. Nobody divides after that: a tile of 64 terms takes 400 cycles."""
    side.panels = blocks_of(side.size, width)
    side.low, side.higher = width, 0
    if even and side.panels > 0:
        side.low = side.size // side.panels
        side.higher = side.size - side.panels * side.low


cdef inline void resize(Operand* side, Py_ssize_t size) noexcept nogil:
    """Change the number of rows or columns of a side that is packed as floats."""
    side.size = size
    _cut(side, MR if side.is_a else NR, side.is_a)


cdef inline Operand stored_as(
    Py_ssize_t type, const void* rows, Py_ssize_t size, Py_ssize_t row, bint along_k
) noexcept nogil:
    """A matrix with rows of ``row`` values, of a type by its GGUF number, as operand B."""
    cdef Operand b = floats_at(
        <const float*>rows, size, row if along_k else 1, 1 if along_k else row, False
    )
    b.type = type_of(type)
    b.row_bytes = row_bytes(&b.type, row)
    b.along_k = along_k
    return b


cdef inline bint is_floats(const Operand* side) noexcept nogil:
    return side.type.number == F32


# -- Panels ----------------------------------------------------------------------------------------


cdef inline const Side* _of(const Operand* side) noexcept nogil:
    return &side.form.a if side.is_a else &side.form.b


cdef inline void pack_as(Operand* side, const Form* form) noexcept nogil:
    """Let a side be cut and packed in a form."""
    side.form = form
    _cut(side, _of(side).width, _of(side).even)


cdef inline Py_ssize_t panel_start(const Operand* side, Py_ssize_t p) noexcept nogil:
    """First row or column of panel p; ``size`` if p is the number of panels."""
    return min(p * side.low + min(p, side.higher), side.size)


cdef inline Py_ssize_t steps(const Operand* side, Py_ssize_t kc) noexcept nogil:
    """Steps in which a tile takes kc terms of each row and column."""
    return blocks_of(kc, side.form.terms)


cdef inline Py_ssize_t panel_floats(const Operand* side, Py_ssize_t kc) noexcept nogil:
    """Floats of a packed panel, a whole number of registers."""
    cdef const Side* its = _of(side)
    return blocks_of(its.head + steps(side, kc) * its.step, V) * V + its.spare


cdef inline Py_ssize_t kept_floats(const Operand* side, Py_ssize_t K) noexcept nogil:
    """Floats of all panels of a side, with K terms."""
    cdef Py_ssize_t most = side.form.pass_terms
    return side.panels * (K // most * panel_floats(side, most) + panel_floats(side, K % most))


cdef inline Py_ssize_t kept_start(
    const Operand* side, Py_ssize_t p, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Where panel p of the pass over terms k .. k + kc - 1 begins: passes follow each other."""
    cdef Py_ssize_t most = side.form.pass_terms
    return k // most * side.panels * panel_floats(side, most) + p * panel_floats(side, kc)


cdef inline void _pack_terms(
    float* y, const Operand* side, const float* x, Py_ssize_t n, Py_ssize_t stride,
    Py_ssize_t k_stride, Py_ssize_t kc, Py_ssize_t row, Py_ssize_t k,
) noexcept nogil:
    cdef Piece piece = Piece(x, n, stride, k_stride, kc, row, k)
    _of(side).pack(y, &piece)


cdef inline const uint8_t* row_of(const Operand* b, Py_ssize_t r) noexcept nogil:
    """Row r of a matrix whose type is not F32."""
    return <const uint8_t*>b.x + r * b.row_bytes


cdef inline void prefetch_stretch(
    const Operand* b, Py_ssize_t r, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Fetch terms k .. k + kc - 1 of a quantized row r. The CPU does not foresee the next row."""
    prefetch(row_of(b, r) + k * b.row_bytes // b.stride, kc * b.row_bytes // b.stride)


cdef inline void _pack_along(
    float* y, const Operand* b, Py_ssize_t p, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panel p, whose columns are quantized rows; up to KC terms."""
    cdef float buffer[NR * KC + LINE]
    cdef float* rows = aligned(buffer)
    cdef Py_ssize_t i, n = min(<Py_ssize_t>NR, b.size - p * NR)
    for i in range(n):
        prefetch_stretch(b, p * NR + i + AHEAD, k, kc)
        dequantize(&b.type, rows + i * KC, row_of(b, p * NR + i), k, kc)
    _pack_terms(y, b, rows, n, KC, 1, kc, 0, k)


cdef inline void _pack_across(
    float* y, const Operand* b, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panels p0 .. p1 - 1, through which the quantized rows run."""
    cdef float buffer[SIDE * STRETCH + LINE]  # the rows of a step
    cdef float* values = aligned(buffer)
    cdef Py_ssize_t s, i, r, t, p, first, last, j, end, at, nbytes
    cdef Py_ssize_t panel = panel_floats(b, kc), rows = max(b.form.terms, <int>TOGETHER)
    for t in range(p0 * NR // STRETCH, blocks_of(p1 * NR, STRETCH)):
        first = max(p0, t * (STRETCH // NR))
        last = min(p1, (t + 1) * (STRETCH // NR))
        j = first * NR // RUN * RUN  # a panel may begin and end within a run
        end = min(blocks_of(last * NR, RUN) * RUN, b.size)
        # As in prefetch_stretch; a row of row_bytes has k_stride values.
        at = j * b.row_bytes // b.k_stride
        nbytes = (end - j) * b.row_bytes // b.k_stride
        memset(values, 0, rows * STRETCH * sizeof(float))
        for s in range(blocks_of(kc, rows)):
            i = s * rows
            for r in range(min(rows, kc - i)):
                prefetch(row_of(b, k + i + r + AHEAD) + at, nbytes)
                dequantize(&b.type, values + r * STRETCH, row_of(b, k + i + r), j, end - j)
            for p in range(first, last):
                _pack_terms(
                    y + (p - p0) * panel + steps(b, i) * b.form.b.step, b, values + (p * NR - j),
                    NR, 1, STRETCH, min(rows, kc - i), 0, k + i,
                )


cdef inline void _pack_pass_across(
    float* y, const Operand* b, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """_pack_across a run at a time: the scale of a column needs all terms of the pass."""
    cdef float buffer[RUN * KC + LINE]
    cdef float* values = aligned(buffer)
    cdef Py_ssize_t t, r, p, j
    for t in range(p0 * NR // RUN, blocks_of(min(p1 * NR, b.size), RUN)):
        j = t * RUN
        for r in range(kc):
            prefetch(row_of(b, k + r) + (j + RUN) * b.row_bytes // b.k_stride, LINE)
            dequantize(&b.type, values + r * RUN, row_of(b, k + r), j, RUN)
        for p in range(max(p0, j // NR), min(p1, (j + RUN) // NR)):
            _pack_terms(
                y + (p - p0) * panel_floats(b, kc), b, values + (p * NR - j), NR, 1, RUN, kc, 0, k
            )


cdef inline void pack(
    float* y, const Operand* side, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panels p0 .. p1 - 1, terms k .. k + kc - 1, one after another."""
    cdef const Side* its = _of(side)
    cdef Py_ssize_t p, t, first, start, n, at, most = KC, panel = panel_floats(side, kc)
    if not is_floats(side) and not side.along_k:
        if its.head:
            _pack_pass_across(y, side, p0, p1, k, kc)
        else:
            _pack_across(y, side, p0, p1, k, kc)
        return
    # Rows that run across k are packed TOGETHER, through all panels. The CPU prefetches along a
    # row, but does not foresee the next one. L1 may have room for only 8 lines that are 4 KB apart.
    if side.k_stride != 1 and not its.head:
        most = max(side.form.terms, <int>TOGETHER)
    for t in range(blocks_of(kc, most)):
        first = t * most
        n = min(most, kc - first)
        at = steps(side, first) * its.step - p0 * panel
        for p in range(p0, p1):
            if not is_floats(side):
                _pack_along(y + at + p * panel, side, p, k + first, n)
                continue
            start = panel_start(side, p)
            _pack_terms(
                y + at + p * panel, side,
                side.x + start * side.stride + (k + first) * side.k_stride,
                min(its.width, side.size - start), side.stride, side.k_stride, n, start, k + first,
            )


# -- How a product is computed ---------------------------------------------------------------------

cdef enum:
    HIGH = 1    # in toynn.numerics.precision.PRECISIONS
    MEDIUM = 2
    IN_INT8 = 3
    BY_ROW = 4  # added to one of these: a row's bits depend on no other row

cdef enum:
    GEMV_ROWS = 3          # up to so many rows of x, packing w costs more time than it saves
    GEMV_INT8_ROWS = 16    # the same if they are rounded to 8 bits
    SMALL_TO = 1 << 21     # up to so many multiplications (20 us), threads and packing do not pay
    SMALL_TO_TILES = 1 << 14  # the same for tiles of one part: they are 16 times as fast
    SMALL_TO_PAIRS = 1 << 16  # and for pairs of bfloat16: packing takes a third of their time
    LARGE_C = 1 << 17      # elements of C (512 KB) that do not stay in L2 from one pass to the next
    ALL_TERMS = 3 << 19    # most floats of the smaller side, packed with all its terms (6 MB)

cdef enum Unit:
    GAINS_BY_PAIRS = 1  # multiplying pairs of bfloat16 pays
    INT8 = 2            # some unit multiplies 8-bit integers
    INT8_UNIT = 4       # times the number of that unit: 0, 1 or 2 of dot_int8.h
    CODES_UNIT = 16     # times 1 + the number of the unit that multiplies panels of codes; 0: none

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
    name = int8_unit(UNITS_OF_BUILD) if HAS_INT8 else ""
    cdef int found = 0, number = INT8_UNITS.get(name, 0), codes = number
    if HAS_PAIRS and gains_by_pairs():
        found |= GAINS_BY_PAIRS
    if name:
        found |= INT8 | INT8_UNIT * number
    if HAS_TILES:
        codes = 2 if amx_int8() else -1
    if (name or HAS_TILES) and codes >= 0 and UNITS_OF_CODES >> codes & 1:
        found |= CODES_UNIT * (1 + codes)
    return found


cdef inline int int8_unit_of(int units) noexcept nogil:
    """The number of the unit that multiplies 8-bit integers, in dot_int8.h."""
    return units // INT8_UNIT & 3


cdef inline bint rounds_gemv(
    Entry which, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Whether the rows of x, if GEMV_INT8_ROWS or fewer, are rounded to 8 bits."""
    return (
        which == FORWARD and precision & ~BY_ROW >= MEDIUM and units & INT8 and in_int8(type)
    )


cdef inline Py_ssize_t gemv_floats(
    Entry which, Py_ssize_t M, Py_ssize_t K, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Floats of scratch memory for GEMV_INT8 in runs of up to M rows; 0 if no row is rounded."""
    if not rounds_gemv(which, type, precision, units):
        return 0
    return int8_floats(M if precision & BY_ROW else min(M, <Py_ssize_t>GEMV_INT8_ROWS), K)


cdef inline void decide(
    Product* p, Entry which, Py_ssize_t type, Py_ssize_t precision, int units
) noexcept nogil:
    """Choose the way of a product and the form of its panels: the first row that fits.

        product                                                 way              computed in
        forward, M <= 16, medium, w Q4_0 Q8_0 Q4_K Q6_K, INT8   GEMV_INT8        8-bit integers
        forward, M <= 3                                         GEMV             float32
        by row (forward for any M by the rows above)            PANELS           float32
        M <= MR or N <= V, B need not be packed                 SKINNY           float32
        M <= MR or N <= V, M N K <= 2^21                        SMALL            float32
        M <= MR or N <= V                                       PANELS           float32
        int8, w quantized, CODES_UNIT, M N K > 2^21             PANELS           8-bit integers
        tiles, medium, K >= 32, M N K > 2^14                    PANELS *         1 part of bfloat16
        tiles, high, K >= 64, M N K > 2^21                      PANELS *         2 parts
        tiles, highest, the same, M N >= 32 (M + N)             PANELS *         3 parts
        medium, CPU gains by pairs, M N K > 2^16                PANELS           pairs of bfloat16
        M N K <= 2^21                                           SMALL            float32
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
    cdef bint small = M * N * K <= SMALL_TO, tiles = False, pairs = False
    cdef bint by_row = precision & BY_ROW
    cdef bint quantized = which != BACKWARD_WEIGHT and p.b.type.values > 1
    cdef bint codes = precision == IN_INT8 and quantized and units >= CODES_UNIT
    cdef const Form* form = FLOATS
    cdef const Operand* smaller
    precision = min(precision & ~BY_ROW, <Py_ssize_t>MEDIUM)
    p.int8, p.int8_unit = NULL, 0
    if (by_row or M <= GEMV_INT8_ROWS) and rounds_gemv(which, type, precision, units):
        p.way, p.int8_unit = GEMV_INT8, int8_unit_of(units)
        p.int8 = dot_int8_of(type, p.int8_unit + (BY_ROW if by_row else 0))
    elif which == FORWARD and (by_row or M <= GEMV_ROWS):
        p.way = GEMV
    elif by_row:
        p.way = PANELS
    elif M <= MR or N <= V:
        p.way = SMALL if small else PANELS
        if N <= V or (is_floats(&p.b) and p.b.stride == 1):
            p.way = SKINNY
    elif codes and not small:
        p.way = PANELS
        form = form_of_codes(units // CODES_UNIT - 1, which == BACKWARD_INPUT)
    else:
        if precision == MEDIUM:
            tiles = HAS_TILES and K >= SIDE and M * N * K > SMALL_TO_TILES
            pairs = not tiles and units & GAINS_BY_PAIRS and M * N * K > SMALL_TO_PAIRS
        elif HAS_TILES and K >= 2 * SIDE and not small:
            tiles = precision == HIGH or M * N >= SIDE * (M + N)
        p.way = SMALL if small and not (tiles or pairs) else PANELS
        if tiles:
            form = form_of_parts(1 + MEDIUM - precision)
        elif pairs:
            form = PAIRS
    if form != FLOATS:
        pack_as(&p.a, form)
        pack_as(&p.b, form)
    smaller = &p.a if M <= N else &p.b
    if tiles and K > form.pass_terms and M * N > LARGE_C and _all_terms(smaller, K) <= ALL_TERMS:
        p.way = PANELS_RESIDENT


cdef inline Py_ssize_t _all_terms(const Operand* side, Py_ssize_t K) noexcept nogil:
    """Floats of a packed side with all its terms, the last pass padded to full length."""
    cdef Py_ssize_t most = side.form.pass_terms
    return kept_floats(side, blocks_of(K, most) * most)


cdef inline bint is_packed(const Product* p) noexcept nogil:
    return p.way >= PANELS


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
