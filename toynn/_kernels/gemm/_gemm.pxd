"""C (+)= A B in float32 on one thread, of operands that are read in place if they can be.

For small and skinny products, blocks of attention, and tiles that no other form can multiply. Sums
run over k in blocks that depend on K alone. So an element of C has the same bits whatever panels,
buffers and threads compute it.
"""
from toynn._kernels.gemm._product cimport (
    KC, LINE, MR, NR, Operand, V, aligned, blocks_of, is_floats, pack, panel_floats, panel_start,
)

cdef enum:
    PACKED = 1 << 14  # most floats of A that a thread packs on its stack (64 KB): they stay in L2
    USES = 3          # fewest panels of B for which packing A pays
    AVX2 = 8          # V: there the tile reads rows of A at any distance as fast as packed ones

cdef extern from "gemm.h" nogil:
    void tile_in_place "tn_tile" (
        int h, int width, Py_ssize_t kc, const float* a, Py_ssize_t a_row, Py_ssize_t a_k,
        const float* b, Py_ssize_t b_k, float* c, Py_ssize_t ldc, bint add,
    ) noexcept


cdef inline void copy_tile(
    float* c, Py_ssize_t ldc, const float* tile, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t columns,
    bint add,
) noexcept nogil:
    """Copy or add to C the rows and columns of a tile that exist."""
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            c[i * ldc + j] = c[i * ldc + j] + tile[i * ld + j] if add else tile[i * ld + j]


cdef inline void multiply_rows(
    float* c, Py_ssize_t ldc, const Operand* a, const float* a_packed, const Operand* b,
    const float* b_packed, Py_ssize_t q, Py_ssize_t k, Py_ssize_t kc, bint add,
) noexcept nogil:
    """Rows of A times panel q of B, for up to KC terms from k on: float32 sums of floats.

    A is read in place unless a_packed has its panels. If b_packed is NULL, B is read in place where
    the columns of a whole tile are side by side in memory; otherwise they are packed here.
    """
    cdef float buffer[NR * KC + LINE]
    cdef float* packed = aligned(buffer)
    cdef float tile[MR * NR]
    cdef Py_ssize_t p, row, b_k = NR, columns = min(NR, b.size - q * NR)
    cdef Py_ssize_t a_step = panel_floats(a, kc)
    cdef const float* b_panel = packed if b_packed == NULL else b_packed
    cdef const float* a_panel
    cdef Py_ssize_t a_row = a.stride if a_packed == NULL else 1
    cdef Py_ssize_t a_k = a.k_stride if a_packed == NULL else MR
    cdef int rows, width = V if columns <= V else NR
    if b_packed == NULL and is_floats(b) and b.stride == 1 and columns == width:
        b_panel = b.x + q * NR + k * b.k_stride
        b_k = b.k_stride
    elif b_packed == NULL:
        pack(packed, b, q, q + 1, k, kc)
    for p in range(a.panels):
        row = panel_start(a, p)
        rows = panel_start(a, p + 1) - row
        a_panel = a.x + row * a.stride + k * a.k_stride
        if a_packed != NULL:
            a_panel = a_packed + p * a_step
        if columns == width:
            tile_in_place(
                rows, width, kc, a_panel, a_row, a_k, b_panel, b_k, c + row * ldc, ldc, add
            )
        else:
            tile_in_place(rows, width, kc, a_panel, a_row, a_k, b_panel, b_k, tile, NR, False)
            copy_tile(c + row * ldc, ldc, tile, NR, rows, columns, add)


cdef inline void multiply(
    float* c, Py_ssize_t ldc, const Operand* a, const Operand* b, Py_ssize_t K, bint add
) noexcept nogil:
    """C (+)= A B on one thread, for blocks that stay in cache."""
    multiply_kept(c, ldc, a, NULL, b, NULL, 0, K, add)


cdef inline void multiply_kept(
    float* c, Py_ssize_t ldc, const Operand* a, const float* a_kept, const Operand* b,
    const float* b_kept, Py_ssize_t b_step, Py_ssize_t K, bint add,
) noexcept nogil:
    """The same; a side of up to KC terms may be packed already, B's panels b_step floats apart."""
    cdef float buffer[PACKED + LINE]
    cdef float* packed = aligned(buffer)
    cdef Py_ssize_t q, t, kc, longest = panel_floats(a, min(K, KC))
    cdef bint few = b.panels < USES or a.panels * longest > PACKED
    cdef bint packs = V != AVX2 and a_kept == NULL and a.stride != 1 and not few
    for t in range(blocks_of(K, KC)):
        kc = min(KC, K - t * KC)
        if packs:
            pack(packed, a, 0, a.panels, t * KC, kc)
        for q in range(b.panels):
            multiply_rows(
                c + q * NR, ldc, a, packed if packs else a_kept, b,
                b_kept + q * b_step if b_kept != NULL else NULL, q, t * KC, kc, add or t > 0,
            )
