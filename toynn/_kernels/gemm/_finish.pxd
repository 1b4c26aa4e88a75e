"""What happens to a block of C while it is in cache: squares, bias, activation."""
from libc.string cimport memcpy

from toynn._kernels.activations._gelu cimport gelu_exact, gelu_tanh
from toynn._kernels.gemm._panels cimport panel_start
from toynn._kernels.gemm._product cimport GELU_EXACT, GELU_TANH, NONE, Product
from toynn._kernels.gemm._squares cimport sum_tiles


cdef inline void finish_row(
    const Product* p, Py_ssize_t at, Py_ssize_t column, Py_ssize_t n
) noexcept nogil:
    """Bias and activation for n elements of C from ``at`` on; their sums are complete."""
    cdef float* c = p.c + at
    cdef float* y = p.y + at
    cdef Py_ssize_t j
    if p.bias != NULL:
        for j in range(n):
            c[j] += p.bias[column + j]
    if y != c:
        memcpy(y, c, n * sizeof(float))
    if p.activation == GELU_TANH:
        for j in range(n):
            y[j] = gelu_tanh(y[j])
    elif p.activation == GELU_EXACT:
        for j in range(n):
            y[j] = gelu_exact(y[j])


cdef inline void finish(
    const Product* p, Py_ssize_t a0, Py_ssize_t a1, Py_ssize_t b0, Py_ssize_t b1
) noexcept nogil:
    """Bias, activation and squares for panels a0 .. a1 - 1 by b0 .. b1 - 1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t column = panel_start(&p.b, b0), columns = panel_start(&p.b, b1) - column
    if p.squares != NULL:
        sum_tiles(p.squares, p.c, &p.a, &p.b, a0, a1, b0, b1)
    if p.bias == NULL and p.y == p.c and p.activation == NONE:
        return
    for i in range(panel_start(&p.a, a0), panel_start(&p.a, a1)):
        finish_row(p, i * p.b.size + column, column, columns)
