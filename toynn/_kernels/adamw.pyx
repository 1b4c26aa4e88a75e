"""AdamW: one step on one parameter, whatever its shape.

    g'[i] = g[i] scale
    m[i]  = beta1 m[i] + (1 - beta1) g'[i]
    v[i]  = beta2 v[i] + (1 - beta2) g'[i]^2
    w[i]  = w[i] (1 - lr weight_decay) - lr (c1 m[i]) / (sqrt(c2 v[i]) + eps)

hp = [lr, beta1, beta2, eps, weight_decay, c1, c2]; c1 and c2 are the bias corrections that
toynn.adamw fills in. scale comes from grad_norm; if it is not finite, w, m and v stay untouched.
n elements, float32. w, m and v are updated in place; no array may overlap another. A program may
keep copies of w, or of the matrices side by side in it, as products read them (copies.pyx): then
each block is packed into them as it is written, while it is in cache.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2.
"""
from libc.math cimport isfinite, sqrtf

from toynn._kernels._common cimport at1
from toynn._kernels._copies cimport Block, Copies, block_at, blocks_in, pack_block
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

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


cdef void _step_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* w = <float*>a.t[0]
    cdef float* m = <float*>a.t[1]
    cdef float* v = <float*>a.t[2]
    cdef const float* g = <const float*>a.t[3]
    cdef const float* hp = <const float*>a.t[4]
    cdef float scale = (<const float*>a.t[5])[0]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_step(w + i, m + i, v + i, g + i, hp, scale, min(BLOCK, n - i))


cdef void _step_copied(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """The same for blocks of matrices, in rows and columns, of which there are copies."""
    cdef float* w = <float*>a.t[0]
    cdef float* m = <float*>a.t[1]
    cdef float* v = <float*>a.t[2]
    cdef const float* g = <const float*>a.t[3]
    cdef const float* hp = <const float*>a.t[4]
    cdef float scale = (<const float*>a.t[5])[0]
    cdef const Copies* copies = <const Copies*>a.kept
    cdef Py_ssize_t N = copies.copies[0].N, K = copies.copies[0].K, b, i, r
    cdef Block at
    for b in range(first, last):
        at = block_at(copies, b)
        for r in range(at.rows):
            i = (at.matrix * N + at.row + r) * K + at.column
            _block_step(w + i, m + i, v + i, g + i, hp, scale, at.columns)
        pack_block(copies, w, &at)


cdef void _step(KernelArgs* a) noexcept nogil:
    cdef float scale = (<const float*>a.t[5])[0]
    cdef Py_ssize_t n = a.n[0]
    cdef const Copies* copies = <const Copies*>a.kept
    if not isfinite(scale):
        return
    if copies != NULL and copies.count > 0:
        parallel_for(_step_copied, a, blocks_in(copies, n))
    else:
        parallel_for(_step_blocks, a, (n + BLOCK - 1) // BLOCK)


def step(
    float[::1] w, float[::1] m, float[::1] v, const float[::1] g, const float[::1] hp,
    const float[::1] scale, int n_threads=1,
):
    """Update w, m and v (n,) in place from the gradient g (n,), hp (7,) and scale (1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = w.shape[0]
    check(
        "adamw.step", f"w ({n},)", n_threads, m=(m, (n,)), v=(v, (n,)), g=(g, (n,)),
        hp=(hp, (7,)), scale=(scale, (1,)),
    )
    a.t[0], a.t[1], a.t[2] = at1(w), at1(m), at1(v)
    a.t[3], a.t[4], a.t[5] = at1(g), at1(hp), at1(scale)
    a.n[0] = n
    a.kept = NULL
    a.n_threads = n_threads
    with nogil:
        _step(&a)


entries = {
    "step": entry(_step, "w m v g hp scale", sizes="n"),
}
