"""The decay of a head's state at each row, as a logarithm: see delta.pyx.

    y[n,v]  = w[v] p                     p = log(1 + e^(x[n,v] + b[v])),  w < 0

    dx[n,v] = dy w[v] s                  s = 1 / (1 + e^-(x[n,v] + b[v]))
    dw[v]   = sum_n dy[n,v] p            db[v] = sum_n dx[n,v]

N rows, V heads. float32, C-contiguous; dx is overwritten, dw and db overwritten or added to.
Source: Dao & Gu 2024, Mamba-2, arXiv:2405.21060: p is its step.
"""
from toynn._kernels.base._common cimport sigmoid_
from toynn._kernels.recurrent._softplus cimport softplus_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, const float* x, const float* w, const float* b, Py_ssize_t V
) noexcept nogil:
    cdef Py_ssize_t v
    for v in range(V):
        y[v] = w[v] * softplus_(x[v] + b[v])


cdef inline void backward_row(
    float* dx, const float* dy, const float* x, const float* w, const float* b, Py_ssize_t V
) noexcept nogil:
    cdef Py_ssize_t v
    for v in range(V):
        dx[v] = dy[v] * w[v] * sigmoid_(x[v] + b[v])


cdef inline void backward_head(
    float* dw, float* db, const float* dx, const float* dy, const float* x, const float* b,
    Py_ssize_t at, Py_ssize_t N, Py_ssize_t V, bint accumulate,
) noexcept nogil:
    """Compute dw and db of head ``at``: one thread adds all rows, in order."""
    cdef Py_ssize_t n, i
    cdef float of_w = dw[0] if dw != NULL and accumulate else 0
    cdef float of_b = db[0] if db != NULL and accumulate else 0
    for n in range(N):
        i = n * V + at
        of_b += dx[i]
        if dw != NULL:
            of_w += dy[i] * softplus_(x[i] + b[0])
    if dw != NULL:
        dw[0] = of_w
    if db != NULL:
        db[0] = of_b


forward = entry("rows N: y[N V] <- x[N V] w[V] b[V]")
backward = entry("rows N, heads V: dx[N V] dw[V]?+ db[V]?+ <- dy[N V] x[N V] w[V] b[V]")
