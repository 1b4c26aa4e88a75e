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
from toynn._kernels.base._common cimport sigmoid_, sigmoid_slope_
from toynn._kernels.base.entry cimport entry


cdef inline float _product(float g, float u) noexcept nogil:
    return g * sigmoid_(g) * u


cdef inline void _gradients(float* dg, float* du, float d, float g, float u) noexcept nogil:
    cdef float slope = 0
    cdef float s = sigmoid_slope_(g, &slope)
    dg[0] = d * u * (s + g * slope)
    du[0] = d * g * s


cdef inline float _within(float x, float low, float high) noexcept nogil:
    """Clamp x to low .. high; NaN stays NaN."""
    return low if x < low else (high if x > high else x)


cdef inline float _clamped(float g, float u, float alpha, float limit) noexcept nogil:
    cdef float h = limit if g > limit else g
    return h * sigmoid_(alpha * h) * (_within(u, -limit, limit) + 1)


cdef inline void _clamped_gradients(
    float* dg, float* du, float d, float g, float u, float alpha, float limit
) noexcept nogil:
    cdef float slope = 0, h = limit if g > limit else g
    cdef float s = sigmoid_slope_(alpha * h, &slope)
    dg[0] = 0 if g > limit else d * (_within(u, -limit, limit) + 1) * (s + alpha * h * slope)
    du[0] = 0 if u > limit or u < -limit else d * h * s


cdef inline void forward_elements(
    float* y, const float* gate, const float* up, float alpha, float limit, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t i
    if limit > 0:
        for i in range(count):
            y[i] = _clamped(gate[i], up[i], alpha, limit)
    else:
        for i in range(count):
            y[i] = _product(gate[i], up[i])


cdef inline void backward_elements(
    float* dgate, float* dup, const float* dy, const float* gate, const float* up, float alpha,
    float limit, Py_ssize_t count,
) noexcept nogil:
    cdef Py_ssize_t i
    if limit > 0:
        for i in range(count):
            _clamped_gradients(dgate + i, dup + i, dy[i], gate[i], up[i], alpha, limit)
    else:
        for i in range(count):
            _gradients(dgate + i, dup + i, dy[i], gate[i], up[i])


cdef inline void halves_forward_row(float* y, const float* x, Py_ssize_t F) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(F):
        y[i] = _product(x[i], x[F + i])


cdef inline void halves_backward_row(
    float* dx, const float* dy, const float* x, Py_ssize_t F
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(F):
        _gradients(dx + i, dx + F + i, dy[i], x[i], x[F + i])


forward = entry("elements n: y[n]=gate=up <- gate[n] up[n] | alpha=1.0 limit=0.0")
backward = entry(
    "elements n: dgate[n]=gate=dy=up dup[n]=up=dy=gate "
    "<- dy[n] gate[n] up[n] | alpha=1.0 limit=0.0"
)
halves_forward = entry("rows N: y[N F] <- x[N 2*F]")
halves_backward = entry("rows N: dx[N 2*F]=x <- dy[N F] x[N 2*F]")
