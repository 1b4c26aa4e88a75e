"""Panels: how the sides of a matrix product are cut, and packed in the order the tile reads them.

A product is C (M,N) (+)= A (M,K) B (K,N). Either side may be stored in either order. An Operand
says how far apart its rows (of A) or columns (of B) are, and how far apart successive k. Each side
is cut into panels as wide as the register tile of gemm.h. Panels of A have at most MR rows, and
nearly the same height. Panels of B have NR columns; packing pads the last one with zeros.

Panels hold floats, or what packing makes of floats. A product in bfloat16 packs both sides as pairs
of rounded terms (gemm_bf16.h). For tiles, panels of both sides are 32 wide, and packing splits each
float into one to three bfloat16 parts (gemm_amx.h). A product in 8 bits packs both sides as quads
of codes, behind the scales of a pass (gemm_int8.h).

B may have any type of _types.pxd; its rows run along k or across it. It is dequantized while it is
packed, a stretch of a row at a time. So only the panels in use are ever float32. Panels that share
a block are packed together, so that the block is dequantized once.

A side that does not change may be prepacked (prepacked.pyx): its panels are read in place.
"""
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from toynn._kernels.quants._blocks cimport RUN
from toynn._kernels.quants._types cimport F32, Type, dequantize, row_bytes, type_of

cdef extern from "gemm.h" nogil:
    enum:
        V "TN_V"    # floats in a register
        MR "TN_MR"  # rows of a tile
        NR "TN_NR"  # columns of a tile
    void prefetch "tn_prefetch" (const void* x, ptrdiff_t nbytes) noexcept
    void transpose "tn_transpose" (
        float* y, Py_ssize_t y_k, const float* x, Py_ssize_t x_row, Py_ssize_t rows
    ) noexcept

cdef extern from "gemm_bf16.h" nogil:
    enum:
        STEP_PAIRS "TN_STEP_PAIRS"  # pairs of a step
    bint HAS_PAIRS "TN_PAIRS"  # whether this build has pack_pairs
    void pack_pairs "tn_pack_pairs" (
        float* y, int width, const float* x, Py_ssize_t n, Py_ssize_t stride, Py_ssize_t k_stride,
        Py_ssize_t kc,
    ) noexcept

cdef extern from "gemm_int8.h" nogil:
    int UNITS_OF_QUADS "TN_QUADS"  # units that this build multiplies quads with, as bits
    int quads_terms "tn_quads_terms" (int unit) noexcept  # of a step
    int quads_words "tn_quads_words" (int unit) noexcept  # of a step, for a row or column
    void pack_quads_a "tn_pack_quads_a" (
        int unit, float* y, const float* x, Py_ssize_t n, Py_ssize_t stride, Py_ssize_t kc,
        bint by_chance, Py_ssize_t row, Py_ssize_t k,
    ) noexcept
    void pack_quads_b "tn_pack_quads_b" (
        int unit, float* y, const float* x, Py_ssize_t n, Py_ssize_t stride, Py_ssize_t k_stride,
        Py_ssize_t kc,
    ) noexcept

cdef extern from "gemm_amx.h" nogil:
    enum:
        SIDE "TN_SIDE"  # with tiles: rows of a panel of A, and terms of a step; also equal to NR
    bint HAS_TILES "TN_TILES"  # whether this build has pack_tiles
    void pack_tiles "tn_pack_tiles" (
        float* y, int parts, bint is_a, const float* x, Py_ssize_t n, Py_ssize_t stride,
        Py_ssize_t k_stride, Py_ssize_t kc,
    ) noexcept
    Py_ssize_t tile_step_floats "tn_step" (int parts) noexcept

cdef enum:
    KC = 256       # terms of a sum per pass: a packed panel of A and one of B fit in 48 KB of L1
    STRETCH = 256  # values of a row dequantized at a time, if it runs across k: whole panels
    TERMS = 32     # rows across k that are packed for all panels before the next rows are
    AHEAD = 8      # how many rows ahead of dequantizing a row is fetched into cache
    LINE = 16      # floats in a cache line

cdef enum Form:  # what packed panels are made of
    FLOATS
    PAIRS    # of bfloat16
    TILES_1  # for tiles, one part of bfloat16 of each float
    TILES_2
    TILES_3
    QUADS    # of 8-bit codes, for unit 0 of gemm_int8.h; QUADS + 1 is for unit 1, and so on

cdef struct Operand:
    const float* x
    Py_ssize_t size    # rows of A, or columns of B
    Py_ssize_t stride  # between rows of A, or columns of B
    Py_ssize_t k_stride
    bint is_a
    Form form            # in which it is packed
    # If type is not F32, x points at bytes; strides count values, as if they were floats.
    Type type
    Py_ssize_t row_bytes
    bint along_k         # a row is one column of B; otherwise it has the values of one k
    const float* packed  # prepacked panels of the whole side, see kept_start; NULL: none
    bint by_chance       # QUADS: rounded up or down by chance, not to the nearest code


cdef inline Operand floats_at(
    const float* x, Py_ssize_t size, Py_ssize_t stride, Py_ssize_t k_stride, bint is_a
) noexcept nogil:
    return Operand(x, size, stride, k_stride, is_a, FLOATS, type_of(F32), 0, False, NULL, False)


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


cdef inline bint in_tiles(const Operand* side) noexcept nogil:
    return TILES_1 <= side.form <= TILES_3 or (HAS_TILES and side.form >= QUADS)


cdef inline int parts_of(const Operand* side) noexcept nogil:
    """bfloat16 parts of each float if packed so for tiles; 0 if not."""
    return side.form - PAIRS if TILES_1 <= side.form <= TILES_3 else 0


cdef inline bint in_quads(const Operand* side) noexcept nogil:
    return side.form >= QUADS


cdef inline int unit_of(const Operand* side) noexcept nogil:
    """The unit that multiplies quads."""
    return side.form - QUADS


cdef inline float* aligned(void* buffer) noexcept nogil:
    """The first cache line that begins in the buffer."""
    return <float*>((<size_t>buffer + 63) & ~<size_t>63)


cdef inline Py_ssize_t blocks_of(Py_ssize_t size, Py_ssize_t most) noexcept nogil:
    """How many blocks of at most ``most`` make ``size``."""
    return (size + most - 1) // most


cdef inline int _width(const Operand* side) noexcept nogil:
    """Rows of a panel of A, at most, or columns of one of B."""
    if side.is_a:
        return SIDE if in_tiles(side) else MR
    return NR


cdef inline Py_ssize_t panels(const Operand* side) noexcept nogil:
    return blocks_of(side.size, _width(side))


cdef inline Py_ssize_t panel_start(const Operand* side, Py_ssize_t p) noexcept nogil:
    """First row or column of panel p; ``size`` if p is the number of panels."""
    if side.is_a and not in_tiles(side):
        return p * side.size // blocks_of(side.size, MR)
    return min(p * _width(side), side.size)


cdef inline int terms_of_step(const Operand* side) noexcept nogil:
    if in_quads(side):
        return quads_terms(unit_of(side))
    return SIDE if in_tiles(side) else 2 * STEP_PAIRS if side.form == PAIRS else 1


cdef inline Py_ssize_t steps(const Operand* side, Py_ssize_t kc) noexcept nogil:
    """Steps in which a tile takes kc terms of each row and column."""
    return blocks_of(kc, terms_of_step(side))


cdef inline Py_ssize_t terms_per_pass(const Operand* side) noexcept nogil:
    """Terms of a sum that are packed at a time; for tiles, as many as take 48 KB."""
    return 3 * KC // parts_of(side) if parts_of(side) else KC


cdef inline Py_ssize_t _step_floats(const Operand* side) noexcept nogil:
    if parts_of(side):
        return tile_step_floats(parts_of(side))
    if in_quads(side):
        return _width(side) * quads_words(unit_of(side))
    return (MR if side.is_a else NR) * (STEP_PAIRS if side.form == PAIRS else 1)


cdef inline Py_ssize_t panel_floats(const Operand* side, Py_ssize_t kc) noexcept nogil:
    """Floats of a packed panel, with one register to spare where packing A may write past it."""
    cdef Py_ssize_t n = steps(side, kc) * _step_floats(side)
    if in_quads(side):
        n += _width(side) * (2 if side.is_a else 1)
    return blocks_of(n, V) * V + V if side.is_a and not in_tiles(side) else n


cdef inline void _pack_floats(
    float* y, int width, const float* x, Py_ssize_t n, Py_ssize_t stride, Py_ssize_t k_stride,
    Py_ssize_t kc,
) noexcept nogil:
    """y[k * width + i] = x[i * stride + k * k_stride] for the n rows that exist, 0 for the others.

    One of the strides is 1. k must ascend: a register may be wider than a row of y, and the next k
    overwrites the surplus.
    """
    cdef Py_ssize_t i, k, b, whole = kc // V
    if stride == 1 and n == width:
        for k in range(kc):
            memcpy(y + k * width, x + k * k_stride, width * sizeof(float))
        return
    if stride == 1:
        whole = 0
    for b in range(whole):
        for i in range((width + V - 1) // V):
            transpose(
                y + b * V * width + i * V, width, x + i * V * stride + b * V, stride, n - i * V
            )
    for k in range(whole * V, kc):
        for i in range(width):
            y[k * width + i] = x[i * stride + k * k_stride] if i < n else 0


cdef inline void _pack_terms(
    float* y, const Operand* side, const float* x, Py_ssize_t n, Py_ssize_t stride,
    Py_ssize_t k_stride, Py_ssize_t kc,
) noexcept nogil:
    """Pack a panel from floats: as floats, in pairs, or as parts for tiles."""
    if parts_of(side):
        pack_tiles(y, parts_of(side), side.is_a, x, n, stride, k_stride, kc)
    elif side.form == PAIRS:
        pack_pairs(y, MR if side.is_a else NR, x, n, stride, k_stride, kc)
    elif in_quads(side):
        pack_quads_b(unit_of(side), y, x, n, stride, k_stride, kc)
    elif side.is_a:
        _pack_floats(y, MR, x, n, stride, k_stride, kc)
    else:
        _pack_floats(y, NR, x, n, stride, k_stride, kc)


cdef inline const uint8_t* row_of(const Operand* b, Py_ssize_t r) noexcept nogil:
    """Row r of a matrix whose type is not F32."""
    return <const uint8_t*>b.x + r * b.row_bytes


cdef inline const float* stretch(
    const Operand* b, Py_ssize_t r, Py_ssize_t k, Py_ssize_t kc, float* buffer
) noexcept nogil:
    """Return terms k .. k + kc - 1 of column r, a row of any type, as floats; maybe in buffer."""
    if is_floats(b):
        return b.x + r * b.stride + k
    dequantize(&b.type, buffer, row_of(b, r), k, kc)
    return buffer


cdef inline void prefetch_stretch(
    const Operand* b, Py_ssize_t r, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Fetch what ``stretch`` reads of a row that is not F32.

    The CPU's own prefetching does not foresee the next row.
    """
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
    _pack_terms(y, b, rows, n, KC, 1, kc)


cdef inline void _pack_across(
    float* y, const Operand* b, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panels p0 .. p1 - 1, through which the quantized rows run."""
    cdef float buffer[SIDE * STRETCH + LINE]  # the rows of a step
    cdef float* values = aligned(buffer)
    cdef Py_ssize_t i, r, t, p, first, last, j, end, terms, at, nbytes
    cdef Py_ssize_t panel = panel_floats(b, kc), per_step = terms_of_step(b)
    for t in range(p0 * NR // STRETCH, blocks_of(p1 * NR, STRETCH)):
        first = max(p0, t * (STRETCH // NR))
        last = min(p1, (t + 1) * (STRETCH // NR))
        j = first * NR // RUN * RUN  # a panel may begin and end within a run
        end = min(blocks_of(last * NR, RUN) * RUN, b.size)
        # As in prefetch_stretch; a row of row_bytes has k_stride values.
        at = j * b.row_bytes // b.k_stride
        nbytes = (end - j) * b.row_bytes // b.k_stride
        memset(values, 0, per_step * STRETCH * sizeof(float))
        for i in range(steps(b, kc)):
            terms = min(per_step, kc - i * per_step)
            for r in range(terms):
                prefetch(row_of(b, k + i * per_step + r + AHEAD) + at, nbytes)
                dequantize(
                    &b.type, values + r * STRETCH, row_of(b, k + i * per_step + r), j, end - j
                )
            for p in range(first, last):
                _pack_terms(
                    y + (p - p0) * panel + i * _step_floats(b), b, values + (p * NR - j), NR, 1,
                    STRETCH, terms,
                )


cdef inline void _pack_quads_across(
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
                y + (p - p0) * panel_floats(b, kc), b, values + (p * NR - j), NR, 1, RUN, kc
            )


cdef inline void pack(
    float* y, const Operand* side, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panels p0 .. p1 - 1, terms k .. k + kc - 1, one after another."""
    cdef Py_ssize_t p, t, first, start, width, n, most, panel = panel_floats(side, kc)
    cdef float* at
    cdef const float* x
    if not is_floats(side) and not side.along_k:
        if in_quads(side):
            _pack_quads_across(y, side, p0, p1, k, kc)
        else:
            _pack_across(y, side, p0, p1, k, kc)
        return
    # Rows that run across k are packed TERMS at a time, through all panels. The CPU prefetches
    # along a row, but does not foresee the next row.
    most = KC if side.k_stride == 1 or in_quads(side) else TERMS
    for t in range(blocks_of(kc, most)):
        first = t * most
        n = min(most, kc - first)
        for p in range(p0, p1):
            at = y + (p - p0) * panel + steps(side, first) * _step_floats(side)
            if not is_floats(side):
                _pack_along(at, side, p, k + first, n)
                continue
            start = panel_start(side, p)
            x = side.x + start * side.stride + (k + first) * side.k_stride
            width = min(_width(side), side.size - start)
            if in_quads(side):  # this is A: with quads, B is never floats
                pack_quads_a(
                    unit_of(side), at, x, width, side.stride, n, side.by_chance, start, k + first
                )
            else:
                _pack_terms(at, side, x, width, side.stride, side.k_stride, n)


cdef inline Py_ssize_t kept_floats(const Operand* side, Py_ssize_t K) noexcept nogil:
    """Floats of all panels of a side, with K terms."""
    cdef Py_ssize_t most = terms_per_pass(side)
    return panels(side) * (K // most * panel_floats(side, most) + panel_floats(side, K % most))


cdef inline Py_ssize_t kept_start(
    const Operand* side, Py_ssize_t p, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Where panel p of the pass over terms k .. k + kc - 1 begins: passes follow each other."""
    cdef Py_ssize_t most = terms_per_pass(side)
    return k // most * panels(side) * panel_floats(side, most) + p * panel_floats(side, kc)


cdef inline const float* packed_panels(
    float* room, const Operand* side, Py_ssize_t p0, Py_ssize_t p1, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Return panels p0 .. p1 - 1 of a pass: the prepacked ones, or packed now, in ``room``."""
    if side.packed != NULL:
        return side.packed + kept_start(side, p0, k, kc)
    pack(room, side, p0, p1, k, kc)
    return room
