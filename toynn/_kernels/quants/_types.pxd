"""The table of types in which a row of a matrix may be stored, and how a row becomes floats.

A row is a whole number of blocks, one after another. Row r of a matrix (N,K) begins r *
row_bytes(type, K) bytes after the first row. A type with blocks of 256 has a function that
dequantizes runs of 32 values of one block. The function of another type dequantizes whole blocks.
"""
from libc.stdint cimport uint8_t

from toynn._kernels.quants._blocks cimport (
    RUN, floats, rows_bf16, rows_f16, rows_q4_0, rows_q4_1, rows_q5_0, rows_q5_1, rows_q8_0,
)
from toynn._kernels.quants._grids cimport (
    block_iq2_s, block_iq2_xs, block_iq2_xxs, block_iq3_s, block_iq3_xxs,
)
from toynn._kernels.quants._ones cimport block_iq1_m, block_iq1_s
from toynn._kernels.quants._superblocks cimport (
    RUNS, SUPER, block_q2_k, block_q3_k, block_q4_k, block_q5_k, block_q6_k,
)
from toynn._kernels.quants._tables cimport block_iq4_xs, rows_iq4_nl, rows_mxfp4, rows_nvfp4
from toynn._kernels.quants._ternary cimport block_tq1_0, block_tq2_0

# y (n,), a row's bytes, j, n, the bytes of a block. Writes values j .. j + n - 1, whole blocks.
ctypedef void (*rows_fn)(floats, const uint8_t*, Py_ssize_t, Py_ssize_t, Py_ssize_t) noexcept nogil
# y (32 (s1 - s0),), a block's bytes, s0, s1. Writes runs s0 .. s1 - 1 of the block.
ctypedef void (*block_fn)(floats, const uint8_t*, Py_ssize_t, Py_ssize_t) noexcept nogil

cdef enum:
    F32 = 0
    TYPES = 25  # rows of the table

cdef struct Type:
    Py_ssize_t number  # in GGUF; -1: there is no such type
    Py_ssize_t values  # of a block
    Py_ssize_t nbytes  # of a block
    rows_fn rows       # NULL: use block
    block_fn block     # if both are NULL, the bytes are floats, and read in place


cdef inline Type type_of(Py_ssize_t number) noexcept nogil:
    """The type with this GGUF number; its number is -1 if there is none."""
    if number == F32:
        return Type(F32, 1, 4, NULL, NULL)
    cdef int i
    cdef Type[TYPES] table = [
        # number, values and bytes of a block, its functions; layouts are described in
        # _blocks.pxd
        Type(1, 1, 2, rows_f16, NULL),
        Type(30, 1, 2, rows_bf16, NULL),
        Type(2, RUN, 18, rows_q4_0, NULL),
        Type(3, RUN, 20, rows_q4_1, NULL),
        Type(6, RUN, 22, rows_q5_0, NULL),
        Type(7, RUN, 24, rows_q5_1, NULL),
        Type(8, RUN, 34, rows_q8_0, NULL),
        # _superblocks.pxd
        Type(10, SUPER, 84, NULL, block_q2_k),
        Type(11, SUPER, 110, NULL, block_q3_k),
        Type(12, SUPER, 144, NULL, block_q4_k),
        Type(13, SUPER, 176, NULL, block_q5_k),
        Type(14, SUPER, 210, NULL, block_q6_k),
        # _grids.pxd
        Type(16, SUPER, 66, NULL, block_iq2_xxs),
        Type(17, SUPER, 74, NULL, block_iq2_xs),
        Type(22, SUPER, 82, NULL, block_iq2_s),
        Type(18, SUPER, 98, NULL, block_iq3_xxs),
        Type(21, SUPER, 110, NULL, block_iq3_s),
        # _ones.pxd
        Type(19, SUPER, 50, NULL, block_iq1_s),
        Type(29, SUPER, 56, NULL, block_iq1_m),
        # _tables.pxd
        Type(20, RUN, 18, rows_iq4_nl, NULL),
        Type(23, SUPER, 136, NULL, block_iq4_xs),
        Type(39, RUN, 17, rows_mxfp4, NULL),
        Type(40, 2 * RUN, 36, rows_nvfp4, NULL),
        # _ternary.pxd
        Type(34, SUPER, 54, NULL, block_tq1_0),
        Type(35, SUPER, 66, NULL, block_tq2_0),
    ]
    for i in range(TYPES):
        if table[i].number == number:
            return table[i]
    return Type(-1, 0, 0, NULL, NULL)


cdef inline Py_ssize_t row_bytes(const Type* type, Py_ssize_t K) noexcept nogil:
    """Bytes of a row of K values."""
    return K // type.values * type.nbytes


cdef inline void dequantize(
    const Type* type, floats y, const uint8_t* row, Py_ssize_t j, Py_ssize_t n
) noexcept nogil:
    """Overwrite y (n,) with values j .. j + n - 1 of a row: whole runs of 32, or half floats."""
    cdef Py_ssize_t i, last, r = j // RUN, end = (j + n) // RUN
    if type.rows != NULL:
        type.rows(y, row, j, n, type.nbytes)
        return
    for i in range(r // RUNS, (end + RUNS - 1) // RUNS):
        last = min(end, (i + 1) * RUNS)
        type.block(y, row + i * type.nbytes, r - i * RUNS, last - i * RUNS)
        y += (last - r) * RUN
        r = last
