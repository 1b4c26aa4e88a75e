"""Heads with gates: what attention gave is let through by a gate that came with the queries.

    q[n,h,d] = x[n,h,0,d]                                       queries
    y[n,h,d] = o[n,h,d] s           s = 1 / (1 + e^-x[n,h,1,d])

    dx[n,h,0,d] = dq[n,h,d],  dx[n,h,1,d] = 0                   queries_backward
    do[n,h,d]   = dy s
    dx[n,h,1,d] = dy o s (1 - s),  dx[n,h,0,d] = 0

N rows of H heads; a head of x has D channels of a query, then D of its gate. float32, C-contiguous;
all outputs are overwritten. In place: y may be o, do may be dy.
Source: Qiu et al. 2025, Gated Attention for Large Language Models, arXiv:2505.06708.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport at2, sigmoid_, sigmoid_slope_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef void _queries_heads(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* q = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i, D = a.n[2]
    for i in range(first, last):
        memcpy(q + i * D, x + 2 * i * D, D * sizeof(float))


cdef void _queries(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], H = a.n[1], D = a.n[2]
    parallel_for(_queries_heads, a, N * H if D else 0)


cdef void _queries_backward_heads(
    KernelArgs* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dq = <const float*>a.t[1]
    cdef Py_ssize_t i, D = a.n[2]
    for i in range(first, last):
        memcpy(dx + 2 * i * D, dq + i * D, D * sizeof(float))
        memset(dx + (2 * i + 1) * D, 0, D * sizeof(float))


cdef void _queries_backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], H = a.n[1], D = a.n[2]
    parallel_for(_queries_backward_heads, a, N * H if D else 0)


cdef void _forward_heads(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* o = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const float* gate
    cdef Py_ssize_t i, d, D = a.n[2]
    for i in range(first, last):
        gate = x + (2 * i + 1) * D
        for d in range(D):
            y[i * D + d] = o[i * D + d] * sigmoid_(gate[d])


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], H = a.n[1], D = a.n[2]
    parallel_for(_forward_heads, a, N * H if D else 0)


cdef void _backward_heads(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* do = <float*>a.t[0]
    cdef float* dx = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* o = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef float s, slope = 0, d
    cdef const float* gate
    cdef float* dgate
    cdef Py_ssize_t i, j, D = a.n[2]
    for i in range(first, last):
        gate = x + (2 * i + 1) * D
        dgate = dx + (2 * i + 1) * D
        memset(dx + 2 * i * D, 0, D * sizeof(float))
        for j in range(D):
            d = dy[i * D + j]
            s = sigmoid_slope_(gate[j], &slope)
            dgate[j] = d * o[i * D + j] * slope
            do[i * D + j] = d * s


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], H = a.n[1], D = a.n[2]
    parallel_for(_backward_heads, a, N * H if D else 0)


cdef _describe(KernelArgs* a, str where, Py_ssize_t rows, Py_ssize_t columns, heads, n_threads):
    """Fill in the sizes; columns are those of q, of o."""
    cdef Py_ssize_t H = heads
    if H < 1 or columns % H:
        raise ValueError(f"{where}: needs heads (>= 1) of {columns} columns; got {heads}")
    a.n[0], a.n[1], a.n[2] = rows, H, columns // H
    a.n_threads = n_threads


def queries(float[:, ::1] q, const float[:, ::1] x, Py_ssize_t heads=1, int n_threads=1):
    """Overwrite q (N, H*D) from x (N, H*2*D)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = q.shape[0], C = q.shape[1]
    check("gated.queries", f"q ({N}, {C})", n_threads, x=(x, (N, 2 * C)))
    _describe(&a, "gated.queries", N, C, heads, n_threads)
    a.t[0], a.t[1] = at2(q), at2(x)
    with nogil:
        _queries(&a)


def queries_backward(
    float[:, ::1] dx, const float[:, ::1] dq, Py_ssize_t heads=1, int n_threads=1
):
    """Overwrite dx (N, H*2*D) from dq (N, H*D)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = dq.shape[0], C = dq.shape[1]
    check("gated.queries_backward", f"dq ({N}, {C})", n_threads, dx=(dx, (N, 2 * C)))
    _describe(&a, "gated.queries_backward", N, C, heads, n_threads)
    a.t[0], a.t[1] = at2(dx), at2(dq)
    with nogil:
        _queries_backward(&a)


def forward(
    float[:, ::1] y, const float[:, ::1] o, const float[:, ::1] x, Py_ssize_t heads=1,
    int n_threads=1,
):
    """Overwrite y (N, H*D) from o (N, H*D) and x (N, H*2*D)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = o.shape[0], C = o.shape[1]
    check("gated.forward", f"o ({N}, {C})", n_threads, y=(y, (N, C)), x=(x, (N, 2 * C)))
    _describe(&a, "gated.forward", N, C, heads, n_threads)
    a.t[0], a.t[1], a.t[2] = at2(y), at2(o), at2(x)
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] do, float[:, ::1] dx, const float[:, ::1] dy, const float[:, ::1] o,
    const float[:, ::1] x, Py_ssize_t heads=1, int n_threads=1,
):
    """Overwrite do (N, H*D) and dx (N, H*2*D) from dy, o and x."""
    cdef KernelArgs a
    cdef Py_ssize_t N = o.shape[0], C = o.shape[1]
    check(
        "gated.backward", f"o ({N}, {C})", n_threads, do=(do, (N, C)), dy=(dy, (N, C)),
        dx=(dx, (N, 2 * C)), x=(x, (N, 2 * C)),
    )
    _describe(&a, "gated.backward", N, C, heads, n_threads)
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(do), at2(dx), at2(dy), at2(o), at2(x)
    with nogil:
        _backward(&a)


entries = {
    "queries": entry(_queries, "q x", sizes="N H D"),
    "queries_backward": entry(_queries_backward, "dx dq", sizes="N H D"),
    "forward": entry(_forward, "y o x", sizes="N H D"),
    "backward": entry(_backward, "do dx dy o x", sizes="N H D"),
}
