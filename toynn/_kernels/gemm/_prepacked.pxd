"""Prepacked weights: a matrix w (N,K) in panels, operand B of a product, packed once for many runs.

A program keeps the panels and passes them to a call by KernelArgs.kept. They have the form that a
product with a certain number of rows uses: floats, pairs or parts of bfloat16, or 8-bit codes. A
product that needs another form (with fewer rows, say) packs w itself.
"""
from toynn._kernels.gemm._product cimport (
    FORWARD, Entry, Operand, Product, form_of, pack_as, weights_of,
)

# All fields are as wide as a pointer: the program writes them as an array of int64.
cdef struct Prepacked:
    float* panels
    Py_ssize_t product  # Entry: the product that reads them
    Py_ssize_t form     # its number: form_of
    Py_ssize_t N
    Py_ssize_t K


cdef inline Operand prepacked_operand(
    const Prepacked* its, const void* w, Py_ssize_t type
) noexcept nogil:
    """w (N,K) as operand B of the product, to be packed in the same form."""
    cdef Operand b = weights_of(<Entry>its.product, w, its.N, its.K, type)
    pack_as(&b, form_of(its.form))
    return b


cdef inline Py_ssize_t terms_of(const Prepacked* its) noexcept nogil:
    """Length of the sums: K if w is read along its rows, N if it is read across them."""
    return its.K if its.product == FORWARD else its.N


cdef inline void read_prepacked(Product* p, const Prepacked* its) noexcept nogil:
    """Let a product read the prepacked B, if there is one in the form that it needs."""
    if its != NULL and its.form == p.b.form.number:
        p.b.packed = its.panels
