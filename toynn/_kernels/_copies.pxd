"""Copies of a matrix w (N,K) in panels: operand B of an entry of matmul, packed for many runs.

A program keeps them, and hands them to a call by KernelArgs.kept. A copy has the form in which its
entry packs w for rows as many as it was made for: floats, pairs or parts of bfloat16. A product
that needs another form (for fewer rows, say) packs w itself.

Of a matrix that is trained, the update packs anew what it has just written, a block at a time. A
block has whole panels, or whole steps of sums, in both directions and in every form.
"""
from toynn._kernels._blocked cimport Product
from toynn._kernels._panels cimport (
    NR, Operand, blocks_of, kept_floats, kept_start, pack, panel_floats, terms_per_pass,
)
from toynn._kernels._products cimport FORWARD, Entry, weights_of

cdef enum:
    MOST_COPIES = 4  # of a matrix: of two entries, in two forms
    ROWS = 32        # of w in a block: multiples of NR and of the terms of a step
    COLUMNS = 512    # the same; of w and what updates it, a block takes 256 KB

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

cdef struct Block:
    Py_ssize_t matrix  # of several that lie one behind another
    Py_ssize_t row
    Py_ssize_t rows
    Py_ssize_t column
    Py_ssize_t columns


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


cdef inline Py_ssize_t blocks_in(const Copies* all, Py_ssize_t n) noexcept nogil:
    """Blocks of all matrices, of n elements together, of which there are these copies."""
    cdef Py_ssize_t N = all.copies[0].N, K = all.copies[0].K
    return n // (N * K) * blocks_of(N, ROWS) * blocks_of(K, COLUMNS)


cdef inline Block block_at(const Copies* all, Py_ssize_t i) noexcept nogil:
    """Block i: they are counted along the rows, then down the matrices."""
    cdef Py_ssize_t N = all.copies[0].N, K = all.copies[0].K
    cdef Py_ssize_t across = blocks_of(K, COLUMNS), down = blocks_of(N, ROWS)
    cdef Py_ssize_t row = i // across % down * ROWS, column = i % across * COLUMNS
    return Block(
        i // (across * down), row, min(ROWS, N - row), column, min(COLUMNS, K - column)
    )


cdef inline void _pack_terms_again(
    float* packed, const Operand* b, Py_ssize_t p, Py_ssize_t k, Py_ssize_t kc, Py_ssize_t K
) noexcept nogil:
    """Pack terms k .. k + kc - 1, of K, of panel p into where it is kept; a step begins at k."""
    cdef Py_ssize_t most = terms_per_pass(b), end = k + kc, start, n
    while k < end:
        start = k // most * most  # of the pass
        n = min(start + most, end) - k
        pack(
            packed + kept_start(b, p, start, min(most, K - start)) + panel_floats(b, k - start), b,
            p, p + 1, k, n,
        )
        k += n


cdef inline void pack_block(const Copies* all, const float* w, const Block* at) noexcept nogil:
    """Have all copies hold what a block of w (matrices, N, K) holds now."""
    cdef const Copy* copy
    cdef Operand b
    cdef bint forward  # rows of w are columns of B, and its columns are terms; else the reverse
    cdef Py_ssize_t i, p, first, last
    for i in range(all.count):
        copy = &all.copies[i]
        forward = copy.entry == FORWARD
        b = copied_operand(copy, w + at.matrix * copy.N * copy.K, 0)
        first = at.row if forward else at.column
        last = first + (at.rows if forward else at.columns)
        for p in range(first // NR, blocks_of(last, NR)):
            _pack_terms_again(
                copy.panels + at.matrix * kept_floats(&b, terms_of(copy)), &b, p,
                at.column if forward else at.row, at.columns if forward else at.rows,
                terms_of(copy),
            )
