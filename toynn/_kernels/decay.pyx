"""The decay of a head's state at each row, as a logarithm: see delta.pyx.

    y[n,v]  = w[v] p                     p = log(1 + e^(x[n,v] + b[v])),  w < 0

    dx[n,v] = dy w[v] s                  s = 1 / (1 + e^-(x[n,v] + b[v]))
    dw[v]   = sum_n dy[n,v] p            db[v] = sum_n dx[n,v]

N rows, V heads. float32, C-contiguous; dx is overwritten, dw and db overwritten or added to.
Source: Dao & Gu 2024, Mamba-2, arXiv:2405.21060: p is its step.
"""
from toynn._kernels._common cimport sigmoid_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels._softplus cimport softplus_
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.decay cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, v
    for n in range(first, last):
        for v in range(a.V):
            a.y[n * a.V + v] = a.w[v] * softplus_(a.x[n * a.V + v] + a.b[v])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.N if a.V else 0)


cdef void _backward_rows(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, v
    for n in range(first, last):
        for v in range(a.V):
            a.dx[n * a.V + v] = a.dy[n * a.V + v] * a.w[v] * sigmoid_(a.x[n * a.V + v] + a.b[v])


cdef void _backward_heads(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, v
    cdef float of_w, of_b
    for v in range(first, last):
        of_w = a.dw[v] if a.dw != NULL and a.accumulate else 0
        of_b = a.db[v] if a.db != NULL and a.accumulate else 0
        for n in range(a.N):
            of_b += a.dx[n * a.V + v]
            if a.dw != NULL:
                of_w += a.dy[n * a.V + v] * softplus_(a.x[n * a.V + v] + a.b[v])
        if a.dw != NULL:
            a.dw[v] = of_w
        if a.db != NULL:
            a.db[v] = of_b


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_rows, a, a.N if a.V else 0)
    if a.dw != NULL or a.db != NULL:
        parallel_for(<part_fn>_backward_heads, a, a.V)


forward = entry(<kernel_fn>_forward, "y[N V] <- x[N V] w[V] b[V]")
backward = entry(<kernel_fn>_backward, "dx[N V] dw[V]?+ db[V]?+ <- dy[N V] x[N V] w[V] b[V]")
