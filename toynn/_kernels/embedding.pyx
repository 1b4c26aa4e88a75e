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
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from toynn._kernels._columns cimport COLS, parallel_columns
from toynn._kernels.quants._types cimport F32, Type, dequantize, row_bytes, type_of
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.embedding cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline void _gather(
    float* y, const uint8_t* w, const Type* type, int row, Py_ssize_t V, Py_ssize_t C
) noexcept nogil:
    cdef const uint8_t* w_v = w + row * row_bytes(type, C)
    if not 0 <= row < V:
        memset(y, 0, C * sizeof(float))
    elif type.number == F32:
        memcpy(y, w_v, C * sizeof(float))
    else:
        dequantize(type, y, w_v, 0, C)


cdef inline void _scatter_columns(
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


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const uint8_t* w = <const uint8_t*>a.w
    cdef Py_ssize_t n
    cdef Type type = type_of(a.type)
    for n in range(first, last):
        _gather(a.y + n * a.C, w, &type, a.ids[n], a.V, a.C)


cdef void _forward(Forward* a) noexcept nogil:
    if a.C:
        parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _zero_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    memset(a.dw + first * a.C, 0, (last - first) * a.C * sizeof(float))


cdef void _backward_blocks(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, c
    for b in range(first, last):
        c = b * COLS
        _scatter_columns(a.dw + c, a.dy + c, a.ids, a.N, a.V, a.C, min(COLS, a.C - c))


cdef void _backward(Backward* a) noexcept nogil:
    if a.V == 0 or a.C == 0:
        return
    if not a.accumulate:
        parallel_for(<part_fn>_zero_rows, a, a.V)
    parallel_columns(<part_fn>_backward_blocks, a, a.C)


forward = entry(<kernel_fn>_forward, "y[N C] <- type w[V C] i32 ids[N]<V | type=F32")
backward = entry(<kernel_fn>_backward, "dw[V C]+ <- dy[N C] i32 ids[N]<V")
