"""SwiGLU: silu of the gate times up, the activation in the middle of a Llama MLP.

    y     = g s u                        s = 1 / (1 + e^-g)
    dgate = dy u (s + g s (1 - s))
    dup   = dy g s

    with a limit m:  h = min(g, m), v = u within [-m, m], s = 1 / (1 + e^(-alpha h))
    y     = h s (v + 1)
    dgate = dy (v + 1) (s + alpha h s (1 - s)), 0 where g > m
    dup   = dy h s, 0 where |u| > m

n elements; g is gate, u is up. float32, C-contiguous. dgate and dup are overwritten.
In place: y, dgate and dup may each be one of the inputs, but not the same one.
Without a limit (0) alpha is not read.
halves: N rows x of 2 F, of which the first F are gate and the others up; dx is overwritten, and may
be x.
Sources: Shazeer 2020, arXiv:2002.05202, section 2; with a limit: OpenAI 2025, arXiv:2508.10925.
"""

from toynn._kernels._common cimport at2, sigmoid_, sigmoid_slope_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels._pointwise cimport gated_backward, gated_forward, parallel_elements
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline void _row_forward(
    float* y, const float* gate, const float* up, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = gate[i] * sigmoid_(gate[i]) * up[i]


cdef inline void _row_backward(
    float* dgate, float* dup, const float* dy, const float* gate, const float* up, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float d, g, u, s, ds = 0
    for i in range(n):
        d, g, u = dy[i], gate[i], up[i]
        s = sigmoid_slope_(g, &ds)
        dgate[i] = d * u * (s + g * ds)
        dup[i] = d * g * s


cdef inline float _within(float x, float low, float high) noexcept nogil:
    """x itself, or the bound that it is beyond; NaN stays NaN."""
    return low if x < low else (high if x > high else x)


cdef inline void _clamped_forward(
    float* y, const float* gate, const float* up, float alpha, float limit, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float g
    for i in range(n):
        g = limit if gate[i] > limit else gate[i]
        y[i] = g * sigmoid_(alpha * g) * (_within(up[i], -limit, limit) + 1)


cdef inline void _clamped_backward(
    float* dgate, float* dup, const float* dy, const float* gate, const float* up, float alpha,
    float limit, Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float d, g, h, u, s, ds = 0
    for i in range(n):
        d, g, u = dy[i], gate[i], up[i]
        h = limit if g > limit else g
        s = sigmoid_slope_(alpha * h, &ds)
        dgate[i] = 0 if g > limit else d * (_within(u, -limit, limit) + 1) * (s + alpha * h * ds)
        dup[i] = 0 if u > limit or u < -limit else d * h * s


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* gate = <const float*>a.t[1]
    cdef const float* up = <const float*>a.t[2]
    cdef Py_ssize_t i = first, n = last - first
    cdef float alpha = a.f[0], limit = a.f[1]
    if limit > 0:
        _clamped_forward(y + i, gate + i, up + i, alpha, limit, n)
    else:
        _row_forward(y + i, gate + i, up + i, n)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dgate = <float*>a.t[0]
    cdef float* dup = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* gate = <const float*>a.t[3]
    cdef const float* up = <const float*>a.t[4]
    cdef Py_ssize_t i = first, n = last - first
    cdef float alpha = a.f[0], limit = a.f[1]
    if limit > 0:
        _clamped_backward(dgate + i, dup + i, dy + i, gate + i, up + i, alpha, limit, n)
    else:
        _row_backward(dgate + i, dup + i, dy + i, gate + i, up + i, n)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


cdef void _halves_forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t n, F = a.n[1]
    for n in range(first, last):
        _row_forward(y + n * F, x + 2 * n * F, x + (2 * n + 1) * F, F)


cdef void _halves_forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], F = a.n[1]
    parallel_for(_halves_forward_rows, a, N if F else 0)


cdef void _halves_backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef Py_ssize_t n, gate, up, F = a.n[1]
    for n in range(first, last):
        gate, up = 2 * n * F, (2 * n + 1) * F
        _row_backward(dx + gate, dx + up, dy + n * F, x + gate, x + up, F)


cdef void _halves_backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], F = a.n[1]
    parallel_for(_halves_backward_rows, a, N if F else 0)


def forward(
    float[::1] y, const float[::1] gate, const float[::1] up, float alpha=1, float limit=0,
    int n_threads=1,
):
    """Overwrite y (n,) from gate (n,) and up (n,); a limit of 0 is none."""
    cdef KernelArgs a
    a.f[0], a.f[1] = alpha, limit
    gated_forward("swiglu.forward", _forward, &a, y, gate, up, n_threads)


def backward(
    float[::1] dgate, float[::1] dup, const float[::1] dy, const float[::1] gate,
    const float[::1] up, float alpha=1, float limit=0, int n_threads=1,
):
    """Overwrite dgate (n,) and dup (n,) from dy, gate and up (n,)."""
    cdef KernelArgs a
    a.f[0], a.f[1] = alpha, limit
    gated_backward("swiglu.backward", _backward, &a, dgate, dup, dy, gate, up, n_threads)


def halves_forward(float[:, ::1] y, const float[:, ::1] x, int n_threads=1):
    """Overwrite y (N,F) from x (N,2F)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = y.shape[0], F = y.shape[1]
    check("swiglu.halves_forward", f"y ({N}, {F})", n_threads, x=(x, (N, 2 * F)))
    a.t[0], a.t[1] = at2(y), at2(x)
    a.n[0], a.n[1] = N, F
    a.n_threads = n_threads
    with nogil:
        _halves_forward(&a)


def halves_backward(
    float[:, ::1] dx, const float[:, ::1] dy, const float[:, ::1] x, int n_threads=1
):
    """Overwrite dx (N,2F) from dy (N,F) and x (N,2F)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = dy.shape[0], F = dy.shape[1]
    check(
        "swiglu.halves_backward", f"dy ({N}, {F})", n_threads, dx=(dx, (N, 2 * F)),
        x=(x, (N, 2 * F)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dx), at2(dy), at2(x)
    a.n[0], a.n[1] = N, F
    a.n_threads = n_threads
    with nogil:
        _halves_backward(&a)


entries = {
    "forward": entry(_forward, "y gate up", sizes="n", options="alpha limit"),
    "backward": entry(_backward, "dgate dup dy gate up", sizes="n", options="alpha limit"),
    "halves_forward": entry(_halves_forward, "y x", sizes="N F"),
    "halves_backward": entry(_halves_backward, "dx dy x", sizes="N F"),
}
