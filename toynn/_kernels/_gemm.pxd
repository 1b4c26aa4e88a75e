"""The inner storeys of a matrix product, shared by matmul and attention: tiles of packed panels.

Sums run over k in blocks that depend on K alone, so that an element of C is the same float whatever
the panels, the buffers and the threads around it. How a packed panel looks and which tile
multiplies it is known here, in _panels.pxd, gemm.h and gemm_bf16.h only.
"""
from toynn._kernels._panels cimport (
    KC, LINE, MR, NR, V, Operand, aligned, blocks_of, pack, panel_start, panels,
)

cdef extern from "gemm.h" nogil:
    void tile_in_place "tn_tile" (
        int h, int width, Py_ssize_t kc, const float* a, Py_ssize_t a_row, Py_ssize_t a_k,
        const float* b, Py_ssize_t b_k, float* c, Py_ssize_t ldc, bint add,
    ) noexcept
    void tile_packed "tn_tile_packed" (
        int h, Py_ssize_t kc, const float* a, const float* b, float* c, Py_ssize_t ldc, bint add
    ) noexcept

cdef extern from "gemm_bf16.h" nogil:
    void tile_pairs "tn_tile_pairs" (
        int h, Py_ssize_t pairs, const float* a, const float* b, float* c, Py_ssize_t ldc, bint add
    ) noexcept


cdef inline void copy_tile(
    float* c, Py_ssize_t ldc, const float* tile, Py_ssize_t rows, Py_ssize_t columns, bint add
) noexcept nogil:
    """The columns of a tile that exist."""
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            c[i * ldc + j] = c[i * ldc + j] + tile[i * NR + j] if add else tile[i * NR + j]


cdef inline void multiply_panels(
    float* c, Py_ssize_t ldc, const float* a, const float* b, int rows, Py_ssize_t columns,
    Py_ssize_t n, bint pairs, bint add,
) noexcept nogil:
    """Packed panel of A times packed panel of B: n terms, or pairs of terms."""
    cdef float tile[MR * NR]
    cdef bint whole = columns == NR
    cdef float* to = c if whole else tile
    cdef Py_ssize_t ld = ldc if whole else NR
    if pairs:
        tile_pairs(rows, n, a, b, to, ld, whole and add)
    else:
        tile_packed(rows, n, a, b, to, ld, whole and add)
    if not whole:
        copy_tile(c, ldc, tile, rows, columns, add)


cdef inline void multiply(
    float* c, Py_ssize_t ldc, const Operand* a, const Operand* b, Py_ssize_t K, bint add
) noexcept nogil:
    """C (+)= A B on one thread, for blocks that stay in cache.

    A is read where it is, and so is B where a tile's columns lie side by side; else they are
    packed.
    """
    cdef float buffer[NR * KC + LINE]
    cdef float* packed = aligned(buffer)
    cdef float tile[MR * NR]
    cdef Py_ssize_t p, q, t, k, kc, row, column, columns, b_k
    cdef Py_ssize_t k_blocks = blocks_of(K, KC), a_panels = panels(a)
    cdef const float* b_panel
    cdef const float* a_panel
    cdef int rows, width
    for q in range(panels(b)):
        column = q * NR
        columns = min(NR, b.size - column)
        width = V if columns <= V else NR
        for t in range(k_blocks):
            k = t * KC
            kc = min(KC, K - k)
            if b.expand == NULL and b.stride == 1 and columns == width:
                b_panel = b.x + column + k * b.k_stride
                b_k = b.k_stride
            else:
                pack(packed, b, q, q + 1, k, kc)
                b_panel = packed
                b_k = NR
            for p in range(a_panels):
                row = panel_start(a, p)
                rows = panel_start(a, p + 1) - row
                a_panel = a.x + row * a.stride + k * a.k_stride
                if columns == width:
                    tile_in_place(
                        rows, width, kc, a_panel, a.stride, a.k_stride, b_panel, b_k,
                        c + row * ldc + column, ldc, add or t > 0,
                    )
                else:
                    tile_in_place(
                        rows, width, kc, a_panel, a.stride, a.k_stride, b_panel, b_k, tile, NR,
                        False,
                    )
                    copy_tile(c + row * ldc + column, ldc, tile, rows, columns, add or t > 0)
