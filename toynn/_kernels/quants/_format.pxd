"""The types in which a row of a matrix may be stored, by their numbers in GGUF.

A row is a whole number of blocks, one after another: row r of a matrix (N,K) begins
r * row_bytes(format, K) bytes after the first.
"""
from libc.stdint cimport uint8_t

from toynn._kernels.quants._blocks cimport (
    RUN, expand_bf16, expand_f16, expand_q4_0, expand_q4_1, expand_q5_0, expand_q5_1, expand_q8_0,
    floats,
)
from toynn._kernels.quants._grids cimport (
    expand_iq2_s, expand_iq2_xs, expand_iq2_xxs, expand_iq3_s, expand_iq3_xxs,
)
from toynn._kernels.quants._ones cimport expand_iq1_m, expand_iq1_s
from toynn._kernels.quants._superblocks cimport (
    SUPER, expand_q2_k, expand_q3_k, expand_q4_k, expand_q5_k, expand_q6_k,
)
from toynn._kernels.quants._tables cimport expand_iq4_nl, expand_iq4_xs, expand_mxfp4, expand_nvfp4
from toynn._kernels.quants._ternary cimport expand_tq1_0, expand_tq2_0

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
    if type == 10:
        return Format(SUPER, 84, expand_q2_k)
    if type == 11:
        return Format(SUPER, 110, expand_q3_k)
    if type == 12:
        return Format(SUPER, 144, expand_q4_k)
    if type == 13:
        return Format(SUPER, 176, expand_q5_k)
    if type == 14:
        return Format(SUPER, 210, expand_q6_k)
    if type == 16:
        return Format(SUPER, 66, expand_iq2_xxs)
    if type == 17:
        return Format(SUPER, 74, expand_iq2_xs)
    if type == 18:
        return Format(SUPER, 98, expand_iq3_xxs)
    if type == 19:
        return Format(SUPER, 50, expand_iq1_s)
    if type == 20:
        return Format(RUN, 18, expand_iq4_nl)
    if type == 21:
        return Format(SUPER, 110, expand_iq3_s)
    if type == 22:
        return Format(SUPER, 82, expand_iq2_s)
    if type == 23:
        return Format(SUPER, 136, expand_iq4_xs)
    if type == 29:
        return Format(SUPER, 56, expand_iq1_m)
    if type == 30:
        return Format(1, 2, expand_bf16)
    if type == 34:
        return Format(SUPER, 54, expand_tq1_0)
    if type == 35:
        return Format(SUPER, 66, expand_tq2_0)
    if type == 39:
        return Format(RUN, 17, expand_mxfp4)
    if type == 40:
        return Format(2 * RUN, 36, expand_nvfp4)
    return Format(0, 0, NULL)


cdef inline Py_ssize_t row_bytes(const Format* format, Py_ssize_t K) noexcept nogil:
    """Bytes of a row of K elements."""
    return K // format.elements * format.nbytes
