"""AdamW: one step on one parameter, whatever its shape.

    g'[i] = g[i] scale
    m[i]  = beta1 m[i] + (1 - beta1) g'[i]
    v[i]  = beta2 v[i] + (1 - beta2) g'[i]^2
    w[i]  = w[i] (1 - lr weight_decay) - lr (c1 m[i]) / (sqrt(c2 v[i]) + eps)

hp = [lr, beta1, beta2, eps, weight_decay, c1, c2]. toynn.optim fills in the bias corrections: at
step t, c1 = 1 / (1 - beta1^t) and c2 = 1 / (1 - beta2^t), or constants. scale comes from grad_norm;
if it is not finite, w, m and v stay untouched.
n elements, float32. w, m and v are updated in place; no array may overlap another.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2.
"""
from libc.math cimport isfinite, sqrtf

from toynn._kernels.base.entry cimport entry

cdef enum:  # toynn.numerics.adamw_row.SLOTS
    LR, BETA1, BETA2, EPS, WEIGHT_DECAY, C1, C2


cdef inline void step_elements(
    float* w, float* m, float* v, const float* g, const float* hp, float scale, Py_ssize_t count
) noexcept nogil:
    cdef float lr = hp[LR], beta1 = hp[BETA1], beta2 = hp[BETA2], eps = hp[EPS]
    cdef float c1 = hp[C1], c2 = hp[C2]
    cdef float keep = 1 - lr * hp[WEIGHT_DECAY], new1 = 1 - beta1, new2 = 1 - beta2
    cdef float grad, m_i, v_i
    cdef Py_ssize_t i
    if not isfinite(scale):
        return
    for i in range(count):
        grad = g[i] * scale
        m_i = beta1 * m[i] + new1 * grad
        v_i = beta2 * v[i] + new2 * grad * grad
        m[i] = m_i
        v[i] = v_i
        w[i] = w[i] * keep - lr * (c1 * m_i) / (sqrtf(c2 * v_i) + eps)


step = entry("elements n: w[n]! m[n]! v[n]! <- g[n] hp[7] scale[1]")
