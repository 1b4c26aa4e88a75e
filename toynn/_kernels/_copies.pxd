"""Copies of a matrix w (N,K) in panels: operand B of an entry of matmul, packed for many runs.

A program keeps them, and hands them to a call by KernelArgs.kept. A copy has the form in which its
entry packs w for rows as many as it was made for: floats, pairs or parts of bfloat16. A product
that needs another form (for fewer rows, say) packs w itself.
"""
from toynn._kernels._blocked cimport Product
from toynn._kernels._panels cimport Operand
from toynn._kernels._products cimport FORWARD, Entry, weights_of

cdef enum:
    MOST_COPIES = 4  # of a matrix: of two entries, in two forms

# All fields are as wide as a pointer: the program writes them as an array of int64.
cdef struct Copy:
    float* panels
    Py_ssize_t entry  # Entry: whose operand
    Py_ssize_t form
    Py_ssize_t N
    Py_ssize_t K

cdef struct Copies:
    Py_ssize_t count
    Copy copies[MOST_COPIES]


cdef inline Py_ssize_t form_of(const Operand* b) noexcept nogil:
    """A number for what packed panels are made of; 0: floats."""
    return 2 * b.parts + b.pairs


cdef inline Operand copied_operand(
    const Copy* copy, const void* w, Py_ssize_t type
) noexcept nogil:
    """Operand B of the entry, w (N,K), to be packed in the copy's form."""
    cdef Operand b = weights_of(<Entry>copy.entry, w, copy.N, copy.K, type)
    b.parts = copy.form // 2
    b.pairs = copy.form % 2
    return b


cdef inline Py_ssize_t terms_of(const Copy* copy) noexcept nogil:
    """Length of the sums: K where w is read along its rows, N across them."""
    return copy.K if copy.entry == FORWARD else copy.N


cdef inline void read_copy(Product* p, const void* kept) noexcept nogil:
    """Have a product read B in a copy, if there is one and it is of the form that B needs."""
    cdef const Copies* all = <const Copies*>kept
    if all != NULL and all.copies[0].form == form_of(&p.b):
        p.b.packed = all.copies[0].panels
