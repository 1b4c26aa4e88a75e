"""Muon: one step on one matrix, along the nearest matrix whose singular values are all near 1.

    momentum  m[i] = beta1 m[i] + g'[i]        g'[i] = g[i] scale
              u[i] = g'[i] + beta1 m[i]        (Nesterov)
    start     x[i] = u[i] / (sqrt(squares) + 1e-7)        squares = sum_i u[i]^2
    mix       y[i] = alpha x[i] + beta z[i]
    step      w[i] = w[i] (1 - lr weight_decay) - lr factor x[i]

Between start and step, x (R, C) goes five times through Newton-Schulz, products and mixes alone:

    A = x x^T    P = b A + c A A    x = a x + P x        (a, b, c) = (3.4445, -4.775, 2.0315)

or, if R > C, A = x^T x and x = a x + x P, so that A is the smaller square. Each round maps a
singular value s to a s + b s^3 + c s^5, which brings s in (0, 1] near 1: after five rounds those
above 0.01 are within 0.68 .. 1.14. The vectors stay as they are.

hp = [lr, beta1, ., ., weight_decay, ., .]. scale comes from grad_norm; if it is not finite, u is 0,
and m and w stay untouched. factor = 0.2 sqrt(max(R, C)): an update as long as AdamW's usual one.
n elements, float32. m and w are updated in place, y may be x; no other array may overlap another.
Source: Jordan et al. 2024, Muon, kellerjordan.github.io/posts/muon; the factor: Liu et al. 2025,
Muon is scalable for LLM training, arXiv:2502.16982, section 2.2.
"""
from libc.math cimport isfinite, sqrtf
from libc.string cimport memset

from toynn._kernels.base.entry cimport entry

cdef enum:  # toynn.numerics.adamw_row.SLOTS
    LR = 0
    BETA1 = 1
    WEIGHT_DECAY = 4


cdef inline void momentum_elements(
    float* m, float* u, const float* g, const float* hp, float scale, Py_ssize_t count
) noexcept nogil:
    cdef float grad, beta1 = hp[BETA1]
    cdef Py_ssize_t i
    if not isfinite(scale):
        memset(u, 0, count * sizeof(float))
        return
    for i in range(count):
        grad = g[i] * scale
        m[i] = beta1 * m[i] + grad
        u[i] = grad + beta1 * m[i]


cdef inline void start_elements(
    float* x, const float* u, float squares, Py_ssize_t count
) noexcept nogil:
    cdef float inverse = 1 / (sqrtf(squares) + <float>1e-7)
    cdef Py_ssize_t i
    for i in range(count):
        x[i] = u[i] * inverse


cdef inline float mix_element(float x, float z, float alpha, float beta) noexcept nogil:
    return alpha * x + beta * z


cdef inline void step_elements(
    float* w, const float* x, const float* hp, float scale, float factor, Py_ssize_t count
) noexcept nogil:
    cdef float rate = hp[LR] * factor, keep = 1 - hp[LR] * hp[WEIGHT_DECAY]
    cdef Py_ssize_t i
    if not isfinite(scale):
        return
    for i in range(count):
        w[i] = w[i] * keep - rate * x[i]


momentum = entry("elements n: m[n]! u[n] <- g[n] hp[7] scale[1]")
start = entry("elements n: x[n] <- u[n] squares[1]")
mix = entry("elements n: y[n]=x <- x[n] z[n] | float alpha float beta")
step = entry("elements n: w[n]! <- x[n] hp[7] scale[1] | float factor")
