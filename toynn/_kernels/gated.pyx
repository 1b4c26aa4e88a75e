"""Gated attention heads: multiply the output of attention by a gate that came with the queries.

    q[n,h,d] = x[n,h,part,d]                                    queries
    y[n,h,d] = o[n,h,d] s           s = 1 / (1 + e^-x[n,h,1,d])

    dx[n,h,part,d] = dq[n,h,d],  dx[n,h,1 - part,d] = 0         queries_backward
    do[n,h,d]   = dy s
    dx[n,h,1,d] = dy o s (1 - s),  dx[n,h,0,d] = 0

N rows of H heads; a head of x has D channels of a query, then D of its gate. The entry queries
takes either half of each head; part (0 or 1) says which. float32, C-contiguous; all outputs are
overwritten. In place: y may be o, do may be dy.
Source: Qiu et al. 2025, Gated Attention for Large Language Models, arXiv:2505.06708.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.gated cimport Backward, Forward, Queries, QueriesBackward
from toynn._kernels.entry cimport entry


cdef void _queries_heads(Queries* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        memcpy(a.q + i * a.D, a.x + (2 * i + a.part) * a.D, a.D * sizeof(float))


cdef void _queries(Queries* a) noexcept nogil:
    parallel_for(<part_fn>_queries_heads, a, a.N * a.H if a.D else 0)


cdef void _queries_backward_heads(
    QueriesBackward* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        memcpy(a.dx + (2 * i + a.part) * a.D, a.dq + i * a.D, a.D * sizeof(float))
        memset(a.dx + (2 * i + 1 - a.part) * a.D, 0, a.D * sizeof(float))


cdef void _queries_backward(QueriesBackward* a) noexcept nogil:
    parallel_for(<part_fn>_queries_backward_heads, a, a.N * a.H if a.D else 0)


cdef void _forward_heads(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const float* gate
    cdef Py_ssize_t i, d, D = a.D
    for i in range(first, last):
        gate = a.x + (2 * i + 1) * D
        for d in range(D):
            a.y[i * D + d] = a.o[i * D + d] * sigmoid_(gate[d])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_heads, a, a.N * a.H if a.D else 0)


cdef void _backward_heads(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float s, slope = 0, d
    cdef const float* gate
    cdef float* dgate
    cdef Py_ssize_t i, j
    for i in range(first, last):
        gate = a.x + (2 * i + 1) * a.D
        dgate = a.dx + (2 * i + 1) * a.D
        memset(a.dx + 2 * i * a.D, 0, a.D * sizeof(float))
        for j in range(a.D):
            d = a.dy[i * a.D + j]
            s = sigmoid_slope_(gate[j], &slope)
            dgate[j] = d * a.o[i * a.D + j] * slope
            a.do[i * a.D + j] = d * s


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_heads, a, a.N * a.H if a.D else 0)


def _one_of_two(where, arrays, sizes, options):
    if sizes["part"] not in (0, 1):
        raise ValueError(f"{where}: part must be 0 or 1; got {sizes['part']}")


queries = entry(<kernel_fn>_queries, "q[N H D] <- x[N H 2 D] | part=0", NULL, _one_of_two)
queries_backward = entry(
    <kernel_fn>_queries_backward, "dx[N H 2 D] <- dq[N H D] | part=0", NULL, _one_of_two
)
forward = entry(<kernel_fn>_forward, "y[N H D]=o <- o[N H D] x[N H 2 D]")
backward = entry(
    <kernel_fn>_backward, "do[N H D]=dy dx[N H 2 D] <- dy[N H D] o[N H D] x[N H 2 D]"
)
