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
The halves entries take x, N rows of 2 F: first gate, then up. dx is overwritten, and may be x.
Sources: Shazeer 2020, arXiv:2002.05202, section 2; with a limit: OpenAI 2025, arXiv:2508.10925.
"""

from toynn._kernels._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.swiglu cimport Backward, Forward, HalvesBackward, HalvesForward
from toynn._kernels.entry cimport entry


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
    """Clamp x to low .. high; NaN stays NaN."""
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


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i = first, n = last - first
    if a.limit > 0:
        _clamped_forward(a.y + i, a.gate + i, a.up + i, a.alpha, a.limit, n)
    else:
        _row_forward(a.y + i, a.gate + i, a.up + i, n)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i = first, n = last - first
    if a.limit > 0:
        _clamped_backward(
            a.dgate + i, a.dup + i, a.dy + i, a.gate + i, a.up + i, a.alpha, a.limit, n
        )
    else:
        _row_backward(a.dgate + i, a.dup + i, a.dy + i, a.gate + i, a.up + i, n)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


cdef void _halves_forward_rows(HalvesForward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_forward(a.y + n * a.F, a.x + 2 * n * a.F, a.x + (2 * n + 1) * a.F, a.F)


cdef void _halves_forward(HalvesForward* a) noexcept nogil:
    parallel_for(<part_fn>_halves_forward_rows, a, a.N if a.F else 0)


cdef void _halves_backward_rows(
    HalvesBackward* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef Py_ssize_t n, gate, up
    for n in range(first, last):
        gate, up = 2 * n * a.F, (2 * n + 1) * a.F
        _row_backward(a.dx + gate, a.dx + up, a.dy + n * a.F, a.x + gate, a.x + up, a.F)


cdef void _halves_backward(HalvesBackward* a) noexcept nogil:
    parallel_for(<part_fn>_halves_backward_rows, a, a.N if a.F else 0)


forward = entry(<kernel_fn>_forward, "y[n]=gate=up <- gate[n] up[n] | alpha=1.0 limit=0.0")
backward = entry(
    <kernel_fn>_backward,
    "dgate[n]=gate=dy=up dup[n]=up=dy=gate "
    "<- dy[n] gate[n] up[n] | alpha=1.0 limit=0.0",
)
halves_forward = entry(<kernel_fn>_halves_forward, "y[N F] <- x[N 2*F]")
halves_backward = entry(<kernel_fn>_halves_backward, "dx[N 2*F]=x <- dy[N F] x[N 2*F]")
