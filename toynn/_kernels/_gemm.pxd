"""The inner storeys of a matrix product, shared by matmul and attention: panels, packing, tiles.

A product is C (M,N) (+)= A (M,K) B (K,N). Either side may lie in memory in either order: an Operand
says how far apart its rows (of A) or columns (of B) are, and how far apart successive k. Each side
is cut into panels as wide as the register tile of gemm.h: A in panels of at most MR rows, all of
nearly the same height, B in panels of NR columns, the last one filled up with zeros when packed.

Sums run over k in blocks that depend on K alone, so that an element of C is the same float whatever
the panels, the buffers and the threads around it. How a packed panel looks and which tile
multiplies it is known here and in gemm.h only.
"""
from libc.string cimport memcpy

cdef extern from "gemm.h" nogil:
    enum:
        V "TN_V"    # floats in a register
        MR "TN_MR"  # rows of a tile
        NR "TN_NR"  # columns of a tile
    void tile_in_place "tn_tile" (
        int h, Py_ssize_t kc, const float* a, Py_ssize_t a_row, Py_ssize_t a_k,
        const float* b, Py_ssize_t b_k, float* c, Py_ssize_t ldc, bint add,
    ) noexcept
    void tile_packed "tn_tile_packed" (
        int h, Py_ssize_t kc, const float* a, const float* b, float* c, Py_ssize_t ldc, bint add
    ) noexcept
    void transpose "tn_transpose" (
        float* y, Py_ssize_t y_k, const float* x, Py_ssize_t x_row, Py_ssize_t rows
    ) noexcept

cdef enum:
    KC = 256  # terms of a sum per pass: a packed panel of A and one of B fit in 48 KB of L1

cdef enum:
    LINE = 16  # floats in a cache line

cdef struct Operand:
    const float* x
    Py_ssize_t size    # rows of A, or columns of B
    Py_ssize_t stride  # between rows of A, or columns of B
    Py_ssize_t k_stride
    bint is_a


cdef inline float* aligned(void* buffer) noexcept nogil:
    """The first cache line that begins in the buffer."""
    return <float*>((<size_t>buffer + 63) & ~<size_t>63)


cdef inline Py_ssize_t blocks_of(Py_ssize_t size, Py_ssize_t most) noexcept nogil:
    """How many blocks of at most ``most`` make ``size``."""
    return (size + most - 1) // most


cdef inline Py_ssize_t panels(const Operand* side) noexcept nogil:
    return blocks_of(side.size, MR if side.is_a else NR)


cdef inline Py_ssize_t panel_start(const Operand* side, Py_ssize_t p) noexcept nogil:
    """First row or column of panel p; that of the panel after the last is ``size``."""
    if side.is_a:
        return p * side.size // blocks_of(side.size, MR)
    return min(p * NR, side.size)


cdef inline Py_ssize_t panel_floats(bint is_a, Py_ssize_t kc) noexcept nogil:
    """Floats that a packed panel takes; one of A may be written past its end by a register."""
    return blocks_of(MR * kc, V) * V + V if is_a else NR * kc


cdef inline void _pack_width(
    float* y, int width, const float* x, Py_ssize_t n, Py_ssize_t stride, Py_ssize_t k_stride,
    Py_ssize_t kc,
) noexcept nogil:
    """y[k * width + i] = x[i * stride + k * k_stride] for the n rows that exist, 0 for the others.

    One of the strides is 1. Where a register is wider than y is, its surplus is written over by the
    next k: hence k ascends.
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


cdef inline void pack(
    float* y, const Operand* side, Py_ssize_t p, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Pack panel p of terms k .. k + kc - 1."""
    cdef Py_ssize_t start = panel_start(side, p)
    cdef const float* x = side.x + start * side.stride + k * side.k_stride
    if side.is_a:
        _pack_width(y, MR, x, min(MR, side.size - start), side.stride, side.k_stride, kc)
    else:
        _pack_width(y, NR, x, min(NR, side.size - start), side.stride, side.k_stride, kc)


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
    Py_ssize_t kc, bint add,
) noexcept nogil:
    """Packed panel of A times packed panel of B."""
    cdef float tile[MR * NR]
    if columns == NR:
        tile_packed(rows, kc, a, b, c, ldc, add)
    else:
        tile_packed(rows, kc, a, b, tile, NR, False)
        copy_tile(c, ldc, tile, rows, columns, add)


cdef inline void multiply(
    float* c, Py_ssize_t ldc, const Operand* a, const Operand* b, Py_ssize_t K, bint add
) noexcept nogil:
    """C (+)= A B on one thread, for blocks that stay in cache.

    A is read where it is, and so is B where NR columns lie side by side; else they are packed.
    """
    cdef float buffer[NR * KC + LINE]
    cdef float* packed = aligned(buffer)
    cdef float tile[MR * NR]
    cdef Py_ssize_t p, q, t, k, kc, row, column, columns, b_k
    cdef Py_ssize_t k_blocks = blocks_of(K, KC), a_panels = panels(a)
    cdef const float* b_panel
    cdef const float* a_panel
    cdef int rows
    for q in range(panels(b)):
        column = q * NR
        columns = min(NR, b.size - column)
        for t in range(k_blocks):
            k = t * KC
            kc = min(KC, K - k)
            if b.stride == 1 and columns == NR:
                b_panel = b.x + column + k * b.k_stride
                b_k = b.k_stride
            else:
                pack(packed, b, q, k, kc)
                b_panel = packed
                b_k = NR
            for p in range(a_panels):
                row = panel_start(a, p)
                rows = panel_start(a, p + 1) - row
                a_panel = a.x + row * a.stride + k * a.k_stride
                if columns == NR:
                    tile_in_place(
                        rows, kc, a_panel, a.stride, a.k_stride, b_panel, b_k,
                        c + row * ldc + column, ldc, add or t > 0,
                    )
                else:
                    tile_in_place(
                        rows, kc, a_panel, a.stride, a.k_stride, b_panel, b_k, tile, NR, False
                    )
                    copy_tile(c + row * ldc + column, ldc, tile, rows, columns, add or t > 0)
