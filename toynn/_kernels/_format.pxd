"""The types in which a row of a matrix may be stored, by their numbers in GGUF.

A row is a whole number of blocks, one after another: row r of a matrix (N,K) begins
r * row_bytes(format, K) bytes after the first.
"""
from libc.stdint cimport uint8_t

from toynn._kernels._blocks cimport (
    RUN, expand_bf16, expand_f16, expand_q4_0, expand_q4_1, expand_q5_0, expand_q5_1, expand_q8_0,
    floats,
)
from toynn._kernels._common cimport at2
from toynn._kernels._superblocks cimport SUPER, expand_q4_k, expand_q5_k, expand_q6_k

# y (n,), the bytes of a row, j, n: elements j .. j + n - 1, whole runs of 32 (of half floats: any).
ctypedef void (*expand_fn)(floats, const uint8_t*, Py_ssize_t, Py_ssize_t) noexcept nogil

cdef struct Format:
    Py_ssize_t elements  # of a block; 0: there is no such type
    Py_ssize_t nbytes    # of a block
    expand_fn expand     # NULL: the bytes are floats, and read where they are


cdef inline Format format_of(Py_ssize_t type) noexcept nogil:
    """What the type with this number is."""
    if type == 0:
        return Format(1, 4, NULL)
    if type == 1:
        return Format(1, 2, expand_f16)
    if type == 2:
        return Format(RUN, 18, expand_q4_0)
    if type == 3:
        return Format(RUN, 20, expand_q4_1)
    if type == 6:
        return Format(RUN, 22, expand_q5_0)
    if type == 7:
        return Format(RUN, 24, expand_q5_1)
    if type == 8:
        return Format(RUN, 34, expand_q8_0)
    if type == 12:
        return Format(SUPER, 144, expand_q4_k)
    if type == 13:
        return Format(SUPER, 176, expand_q5_k)
    if type == 14:
        return Format(SUPER, 210, expand_q6_k)
    if type == 30:
        return Format(1, 2, expand_bf16)
    return Format(0, 0, NULL)


cdef inline Py_ssize_t row_bytes(const Format* format, Py_ssize_t K) noexcept nogil:
    """Bytes of a row of K elements."""
    return K // format.elements * format.nbytes


cdef inline void* rows_at(w, str type) except? NULL:
    """The address of the matrix that a Python door was given: floats, or else bytes."""
    cdef const float[:, ::1] values
    cdef const uint8_t[:, ::1] blocks
    if type == "F32":
        values = w
        return at2(values)
    blocks = w
    return <void*>&blocks[0, 0] if blocks.shape[0] and blocks.shape[1] else NULL
