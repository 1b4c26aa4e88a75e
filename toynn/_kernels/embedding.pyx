"""Embedding: rows of a table, gathered by id.

    y[n,c]  = w[ids[n],c]
    dw[v,c] = sum of dy[n,c] over the n with ids[n] = v

N ids, a table of V rows, C channels. float32, ids int32; outputs never alias inputs. For forward
w may be stored in blocks of any type of _format.pxd, of which the rows asked for are expanded.
Nothing is saved. y is overwritten; dw is overwritten, or added to if accumulate is set.
The Python doors refuse an id outside 0..V-1; the program's entries, whose caller has checked the
ids, skip it (y gets zeros, dw nothing) rather than read or write outside the table.
Source: the lookup table of Bengio et al. 2003, A Neural Probabilistic Language Model, section 2.
"""
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from toynn._kernels._columns cimport COLS, parallel_columns
from toynn._kernels._common cimport at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._format cimport Format, format_of, row_bytes, rows_at
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check, row_length
from toynn.dtypes import GGUF_TYPES


cdef inline void _gather(
    float* y, const uint8_t* w, const Format* format, int row, Py_ssize_t V, Py_ssize_t C
) noexcept nogil:
    cdef const uint8_t* w_v = w + row * row_bytes(format, C)
    if not 0 <= row < V:
        memset(y, 0, C * sizeof(float))
    elif format.expand == NULL:
        memcpy(y, w_v, C * sizeof(float))
    else:
        format.expand(y, w_v, 0, C)


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


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const uint8_t* w = <const uint8_t*>a.t[1]
    cdef const int* ids = <const int*>a.t[2]
    cdef Py_ssize_t n, V = a.n[1], C = a.n[2], type = a.n[3]
    cdef Format format = format_of(type)
    for n in range(first, last):
        _gather(y + n * C, w, &format, ids[n], V, C)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[2]
    if C:
        parallel_for(_forward_rows, a, N)


cdef void _zero_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dw = <float*>a.t[0]
    cdef Py_ssize_t C = a.n[2]
    memset(dw + first * C, 0, (last - first) * C * sizeof(float))


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dw = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const int* ids = <const int*>a.t[2]
    cdef Py_ssize_t b, c, N = a.n[0], V = a.n[1], C = a.n[2]
    for b in range(first, last):
        c = b * COLS
        _scatter_columns(dw + c, dy + c, ids, N, V, C, min(COLS, C - c))


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t V = a.n[1], C = a.n[2]
    if V == 0 or C == 0:
        return
    if not a.accumulate:
        parallel_for(_zero_rows, a, V)
    parallel_columns(_backward_blocks, a, C)


def _check_ids(where, const int[::1] ids, Py_ssize_t V):
    """Raise ValueError at the first id outside 0..V-1."""
    cdef Py_ssize_t n
    for n in range(ids.shape[0]):
        if not 0 <= ids[n] < V:
            raise ValueError(f"{where}: row {n}: id {ids[n]} is outside 0..{V - 1}")


def forward(float[:, ::1] y, w, const int[::1] ids, str type="F32", int n_threads=1):
    """Overwrite y (N,C) with the rows ids (N,) of w (V,C).

    Of a ``type`` other than "F32", w holds bytes: (V, bytes of a row of C elements).
    """
    cdef KernelArgs a
    cdef Py_ssize_t N = ids.shape[0], V = w.shape[0], C = y.shape[1]
    check(
        "embedding.forward", f"ids ({N},), {V} rows of {C}", n_threads, y=(y, (N, C)),
        w=(w, (V, row_length("embedding.forward", type, C))),
    )
    _check_ids("embedding.forward", ids, V)
    a.t[0], a.t[1], a.t[2] = at2(y), rows_at(w, type), ids1(ids)
    a.n[0], a.n[1], a.n[2], a.n[3] = N, V, C, GGUF_TYPES[type]
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dw, const float[:, ::1] dy, const int[::1] ids,
    bint accumulate=False, int n_threads=1,
):
    """Overwrite dw (V,C) with the rows of dy (N,C) summed by id, or add them to it."""
    cdef KernelArgs a
    cdef Py_ssize_t N = ids.shape[0], V = dw.shape[0], C = dw.shape[1]
    check("embedding.backward", f"ids ({N},), dw ({V}, {C})", n_threads, dy=(dy, (N, C)))
    _check_ids("embedding.backward", ids, V)
    a.t[0], a.t[1], a.t[2] = at2(dw), at2(dy), ids1(ids)
    a.n[0], a.n[1], a.n[2] = N, V, C
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y w ids", sizes="N V C type"),
    "backward": entry(_backward, "dw dy ids", sizes="N V C"),
}
