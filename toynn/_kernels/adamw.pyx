"""AdamW: one step on one parameter, whatever its shape.

    g'[i] = g[i] scale
    m[i]  = beta1 m[i] + (1 - beta1) g'[i]
    v[i]  = beta2 v[i] + (1 - beta2) g'[i]^2
    w[i]  = w[i] (1 - lr weight_decay) - lr (c1 m[i]) / (sqrt(c2 v[i]) + eps)

hp = [lr, beta1, beta2, eps, weight_decay, c1, c2]. toynn.optim fills in the bias corrections c1 and
c2. scale comes from grad_norm; if it is not finite, w, m and v stay untouched.
n elements, float32. w, m and v are updated in place; no array may overlap another.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2.
"""
from libc.math cimport isfinite, sqrtf

from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.adamw cimport Step
from toynn._kernels.entry cimport entry

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array; a tiny model still has a few tasks


cdef inline void _block_step(
    float* w, float* m, float* v, const float* g, const float* hp, float scale, Py_ssize_t size
) noexcept nogil:
    cdef float lr = hp[0], beta1 = hp[1], beta2 = hp[2], eps = hp[3], c1 = hp[5], c2 = hp[6]
    cdef float keep = 1 - lr * hp[4], new1 = 1 - beta1, new2 = 1 - beta2
    cdef float grad, m_i, v_i
    cdef Py_ssize_t i
    for i in range(size):
        grad = g[i] * scale
        m_i = beta1 * m[i] + new1 * grad
        v_i = beta2 * v[i] + new2 * grad * grad
        m[i] = m_i
        v[i] = v_i
        w[i] = w[i] * keep - lr * (c1 * m_i) / (sqrtf(c2 * v_i) + eps)


cdef void _step_blocks(Step* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float scale = a.scale[0]
    cdef Py_ssize_t b, i
    for b in range(first, last):
        i = b * BLOCK
        _block_step(a.w + i, a.m + i, a.v + i, a.g + i, a.hp, scale, min(BLOCK, a.n - i))


cdef void _step(Step* a) noexcept nogil:
    if isfinite(a.scale[0]):
        parallel_for(<part_fn>_step_blocks, a, (a.n + BLOCK - 1) // BLOCK)


step = entry(<kernel_fn>_step, "w[n]! m[n]! v[n]! <- g[n] hp[7] scale[1]")
