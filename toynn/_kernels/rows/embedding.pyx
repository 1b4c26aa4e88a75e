"""Embedding: rows of a table, gathered by id.

    y[n,c]  = w[ids[n],c]
    dw[v,c] = sum of dy[n,c] over the n with ids[n] = v

N ids, a table of V rows, C channels. float32, ids int32; outputs never alias inputs. For forward
w may have any type of _types.pxd; only the rows asked for are dequantized.
Nothing is saved. y is overwritten; dw is overwritten, or added to if accumulate is set.
The Python calls refuse an id outside 0..V-1. A program's caller has checked the ids. Its entries
skip a wrong id (y gets zeros, dw nothing) rather than read or write outside the table.
Source: the lookup table of Bengio et al. 2003, A Neural Probabilistic Language Model, section 2.
"""
from libc.string cimport memcpy, memset

from toynn._kernels.base.entry cimport entry
from toynn._kernels.quants._types cimport F32, Type, dequantize, row_bytes, type_of


cdef inline void forward_rows(
    float* y, const void* w, const int* ids, Py_ssize_t V, Py_ssize_t C, Py_ssize_t type,
    Py_ssize_t count,
) noexcept nogil:
    cdef Type its = type_of(type)
    cdef const unsigned char* w_v
    cdef Py_ssize_t n
    for n in range(count):
        w_v = <const unsigned char*>w + ids[n] * row_bytes(&its, C)
        if not 0 <= ids[n] < V:
            memset(y + n * C, 0, C * sizeof(float))
        elif its.number == F32:
            memcpy(y + n * C, w_v, C * sizeof(float))
        else:
            dequantize(&its, y + n * C, w_v, 0, C)


cdef inline void backward_rows(
    float* dw, Py_ssize_t C, bint accumulate, Py_ssize_t count
) noexcept nogil:
    if not accumulate:
        memset(dw, 0, count * C * sizeof(float))


cdef inline void backward_columns(
    float* dw, const float* dy, const int* ids,
    Py_ssize_t N, Py_ssize_t V, Py_ssize_t C, Py_ssize_t width,
) noexcept nogil:
    """dw[:, :width] += dy[:, :width] by id, for the columns at which dw and dy already point."""
    cdef float* dw_v
    cdef Py_ssize_t n, c
    for n in range(N):
        if 0 <= ids[n] < V:
            dw_v = dw + ids[n] * C
            for c in range(width):
                dw_v[c] += dy[n * C + c]


forward = entry("rows N: y[N C] <- type w[V C] i32 ids[N]<V | type=F32")
backward = entry("rows V, columns C: dw[V C]+ <- dy[N C] i32 ids[N]<V")
