"""One tile of C: a packed panel of A by a packed panel of B, in any form."""
from toynn._kernels.gemm._gemm cimport (
    multiply_panels, multiply_panels_in_tiles, multiply_rows, splits_exactly,
)
from toynn._kernels.gemm._panels cimport (
    FLOATS, KC, Operand, blocks_of, floats_at, panel_start, parts_of, steps,
)
from toynn._kernels.gemm._product cimport Product


cdef inline void _multiply_as_floats(
    const Product* p, Py_ssize_t a, Py_ssize_t b, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Panel a by panel b from the unpacked operands; right for numbers of any size."""
    cdef Py_ssize_t N = p.b.size, row = panel_start(&p.a, a), t, first
    cdef Operand rows = floats_at(
        p.a.x + row * p.a.stride, panel_start(&p.a, a + 1) - row, p.a.stride, p.a.k_stride, True
    )
    cdef Operand columns = p.b
    columns.form = FLOATS
    for t in range(blocks_of(kc, KC)):
        first = t * KC
        multiply_rows(
            p.c + row * N + panel_start(&p.b, b), N, &rows, NULL, &columns, b, k + first,
            min(KC, kc - first), p.add or k + first > 0,
        )


cdef inline void multiply_tile(
    const Product* p, Py_ssize_t a, const float* a_packed, Py_ssize_t b, const float* b_packed,
    Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Panel a by panel b: one tile of C."""
    cdef Py_ssize_t N = p.b.size, n = steps(&p.a, kc)
    cdef Py_ssize_t row = panel_start(&p.a, a), rows = panel_start(&p.a, a + 1) - row
    cdef Py_ssize_t column = panel_start(&p.b, b), columns = panel_start(&p.b, b + 1) - column
    cdef float* c = p.c + row * N + column
    cdef bint add = p.add or k > 0
    cdef int parts = parts_of(&p.a)
    if not parts:
        multiply_panels(c, N, a_packed, b_packed, rows, columns, n, p.a.form, add)
    elif parts == 1 or splits_exactly(parts, n, a_packed, b_packed):
        multiply_panels_in_tiles(c, N, a_packed, b_packed, rows, columns, parts, n, add)
    else:
        _multiply_as_floats(p, a, b, k, kc)
