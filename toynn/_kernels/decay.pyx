"""How much a head's state forgets in a row, as a logarithm: see delta.pyx.

    y[n,v]  = w[v] p                     p = log(1 + e^(x[n,v] + b[v])),  w < 0

    dx[n,v] = dy w[v] s                  s = 1 / (1 + e^-(x[n,v] + b[v]))
    dw[v]   = sum_n dy[n,v] p            db[v] = sum_n dx[n,v]

N rows, V heads. float32, C-contiguous; dx is overwritten, dw and db overwritten or added to.
Source: Dao & Gu 2024, Mamba-2, arXiv:2405.21060, whose step p is.
"""
from libc.math cimport expf, log1pf

from toynn._kernels._common cimport at1, at2, sigmoid_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline float _softplus(float x) noexcept nogil:
    return x + log1pf(expf(-x)) if x > 0 else log1pf(expf(x))


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const float* w = <const float*>a.t[2]
    cdef const float* b = <const float*>a.t[3]
    cdef Py_ssize_t n, v, V = a.n[1]
    for n in range(first, last):
        for v in range(V):
            y[n * V + v] = w[v] * _softplus(x[n * V + v] + b[v])


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], V = a.n[1]
    parallel_for(_forward_rows, a, N if V else 0)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* w = <const float*>a.t[5]
    cdef const float* b = <const float*>a.t[6]
    cdef Py_ssize_t n, v, V = a.n[1]
    for n in range(first, last):
        for v in range(V):
            dx[n * V + v] = dy[n * V + v] * w[v] * sigmoid_(x[n * V + v] + b[v])


cdef void _backward_heads(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const float* dx = <const float*>a.t[0]
    cdef float* dw = <float*>a.t[1]
    cdef float* db = <float*>a.t[2]
    cdef const float* dy = <const float*>a.t[3]
    cdef const float* x = <const float*>a.t[4]
    cdef const float* b = <const float*>a.t[6]
    cdef Py_ssize_t n, v, N = a.n[0], V = a.n[1]
    cdef float of_w, of_b
    for v in range(first, last):
        of_w = dw[v] if dw != NULL and a.accumulate else 0
        of_b = db[v] if db != NULL and a.accumulate else 0
        for n in range(N):
            of_b += dx[n * V + v]
            if dw != NULL:
                of_w += dy[n * V + v] * _softplus(x[n * V + v] + b[v])
        if dw != NULL:
            dw[v] = of_w
        if db != NULL:
            db[v] = of_b


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef const float* dw = <const float*>a.t[1]
    cdef const float* db = <const float*>a.t[2]
    cdef Py_ssize_t N = a.n[0], V = a.n[1]
    parallel_for(_backward_rows, a, N if V else 0)
    if dw != NULL or db != NULL:
        parallel_for(_backward_heads, a, V)


def forward(
    float[:, ::1] y, const float[:, ::1] x, const float[::1] w, const float[::1] b,
    int n_threads=1,
):
    """Overwrite y (N,V) from x (N,V), w (V,) and b (V,)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], V = x.shape[1]
    check(
        "decay.forward", f"x ({N}, {V})", n_threads, y=(y, (N, V)), w=(w, (V,)), b=(b, (V,))
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(y), at2(x), at1(w), at1(b)
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[::1] dw, float[::1] db, const float[:, ::1] dy,
    const float[:, ::1] x, const float[::1] w, const float[::1] b, bint accumulate=False,
    int n_threads=1,
):
    """Overwrite dx (N,V); overwrite dw and db (V,), or add to them."""
    cdef KernelArgs a
    cdef Py_ssize_t N = x.shape[0], V = x.shape[1]
    check(
        "decay.backward", f"x ({N}, {V})", n_threads, dx=(dx, (N, V)), dy=(dy, (N, V)),
        dw=(dw, (V,)), db=(db, (V,)), w=(w, (V,)), b=(b, (V,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dx), at1(dw), at1(db), at2(dy)
    a.t[4], a.t[5], a.t[6] = at2(x), at1(w), at1(b)
    a.n[0], a.n[1] = N, V
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x w b", sizes="N V"),
    "backward": entry(_backward, "dx dw? db? dy x w b", sizes="N V"),
}
