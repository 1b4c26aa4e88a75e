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

from toynn._kernels.base._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels.base.entry cimport entry


cdef inline void queries_head(
    float* q, const float* x, Py_ssize_t D, Py_ssize_t part
) noexcept nogil:
    memcpy(q, x + part * D, D * sizeof(float))


cdef inline void queries_backward_head(
    float* dx, const float* dq, Py_ssize_t D, Py_ssize_t part
) noexcept nogil:
    memcpy(dx + part * D, dq, D * sizeof(float))
    memset(dx + (1 - part) * D, 0, D * sizeof(float))


cdef inline void forward_head(
    float* y, const float* o, const float* x, Py_ssize_t D
) noexcept nogil:
    cdef Py_ssize_t d
    for d in range(D):
        y[d] = o[d] * sigmoid_(x[D + d])


cdef inline void backward_head(
    float* do, float* dx, const float* dy, const float* o, const float* x, Py_ssize_t D
) noexcept nogil:
    cdef float s, slope = 0, dy_d
    cdef Py_ssize_t d
    memset(dx, 0, D * sizeof(float))
    for d in range(D):
        dy_d = dy[d]
        s = sigmoid_slope_(x[D + d], &slope)
        dx[D + d] = dy_d * o[d] * slope
        do[d] = dy_d * s


def _one_of_two(where, arrays, sizes, options):
    if sizes["part"] not in (0, 1):
        raise ValueError(f"{where}: part must be 0 or 1; got {sizes['part']}")


queries = entry("heads N*H: q[N H D] <- x[N H 2 D] | part=0", _one_of_two)
queries_backward = entry("heads N*H: dx[N H 2 D] <- dq[N H D] | part=0", _one_of_two)
forward = entry("heads N*H: y[N H D]=o <- o[N H D] x[N H 2 D]")
backward = entry("heads N*H: do[N H D]=dy dx[N H 2 D] <- dy[N H D] o[N H D] x[N H 2 D]")
