"""Sums of squares of a gradient dw (N,K), one per tile, for the norm of all gradients.

A product sums the squares of a tile when it has stored the tile and still has it in cache
(_loops.pxd). If dw changes later, grad_norm.pyx sums them again. A tile is one panel by another:
panels of floats, or 32 by 32 at a level with the tiles of AMX. So the cut depends on N, K and the
level alone. The bits depend neither on the thread that sums a tile nor on the rows of dy.
"""
cdef extern from "squares.h" nogil:
    float sum_squares "tn_sum_squares" (
        const float* c, Py_ssize_t ldc, Py_ssize_t rows, Py_ssize_t columns
    ) noexcept

from toynn._kernels.gemm._product cimport (
    MR, SQUARES, V, Operand, Product, floats_at, is_packed, pack_as, panel_start,
)

# All fields are as wide as a pointer: the program writes them as an array of int64.
cdef struct Squares:
    Py_ssize_t first  # element of g at which dw begins
    Py_ssize_t N
    Py_ssize_t K
    float* sums       # one per tile, row by row of panels
    Py_ssize_t valid  # whether the sums match what is in dw
    double total      # the sum of the sums

cdef struct AllSquares:
    Py_ssize_t count
    Squares* each     # in the order in which they are stored in g


cdef inline Operand _cut(Py_ssize_t size, bint is_a) noexcept nogil:
    cdef Operand side = floats_at(NULL, size, 1, 1, is_a)
    pack_as(&side, SQUARES)
    return side


cdef inline Operand rows_of(Py_ssize_t N) noexcept nogil:
    """dw's rows, in panels."""
    return _cut(N, True)


cdef inline Operand columns_of(Py_ssize_t K) noexcept nogil:
    return _cut(K, False)


cdef inline bint can_sum_squares(const Product* p) noexcept nogil:
    """Whether the panels of a product cut dw in the same way."""
    return is_packed(p) and p.a.form.a.width == SQUARES.a.width


cdef inline bint has_tiles(Py_ssize_t N, Py_ssize_t K) noexcept nogil:
    """Whether dw (N,K) has more than MR rows and V columns. Otherwise its product is SKINNY."""
    return N > MR and K > V


cdef inline void sum_tiles(
    float* sums, const float* dw, const Operand* a, const Operand* b, Py_ssize_t a0, Py_ssize_t a1,
    Py_ssize_t b0, Py_ssize_t b1,
) noexcept nogil:
    """Overwrite the sums of panels a0 .. a1 - 1 by b0 .. b1 - 1 of dw."""
    cdef Py_ssize_t i, j, row, column, rows
    for i in range(a0, a1):
        row = panel_start(a, i)
        rows = panel_start(a, i + 1) - row
        for j in range(b0, b1):
            column = panel_start(b, j)
            sums[i * b.panels + j] = sum_squares(
                dw + row * b.size + column, b.size, rows, panel_start(b, j + 1) - column
            )
