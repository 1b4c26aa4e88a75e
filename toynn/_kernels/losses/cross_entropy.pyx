"""Cross-entropy of softmax(logits) against integer labels, or against dense label rows.

With integer labels the gradient is (softmax - onehot) / rows. In full, for rows p of labels:

    lse[n]       = log sum_v exp(logits[n,v])
    loss         = 1/rows sum_n sum_v p[n,v] (lse[n] - logits[n,v])
    dlogits[n,v] = dloss/rows (s[n] exp(logits[n,v] - lse[n]) - p[n,v]),   s[n] = sum_v p[n,v]

With integer labels, p[n] is the one-hot row of labels[n]: 1 there, 0 elsewhere, and s[n] = 1. A
plain step in C: bench/rungs/rows.c. The entries _dense take the rows p as labels. rows counts the
labelled rows. A row with the label -100, or a dense row of zeros, has no label: its dlogits are 0.
Without a labelled row, loss is NaN. N rows, V classes; float32, labels int32 or float32. dlogits
may be logits; no other aliasing. Saved for backward: lse (N,), rows (1,). The Python calls refuse a
label outside 0..V-1. A program ignores a row with such a label; its caller has checked all labels.
Source: Bridle 1990; the shift by the row's maximum: Blanchard et al. 2021, IMA J. Numer. Anal. 41.
"""
from libc.math cimport NAN, log
from libc.string cimport memcpy, memset

from toynn._kernels.base._common cimport exp_, max_, sum_
from toynn._kernels.losses._logits cimport BLOCK, exp_sum
from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.base.abi cimport kernel_fn
from toynn._kernels.args.cross_entropy cimport Forward, ForwardDense
from toynn._kernels.base.entry cimport entry

cdef enum:
    TASKS = 256  # groups of rows, each with its own sum of losses: fixed for any thread count

ctypedef fused Labelled:
    Forward
    ForwardDense


cdef inline bint _all_zero(const float* p, Py_ssize_t V) noexcept nogil:
    cdef Py_ssize_t v
    for v in range(V):
        if p[v] != 0:
            return False
    return True


cdef inline double _dense_loss(
    const float* x, const float* p, float top, float log_sum, Py_ssize_t V
) noexcept nogil:
    """sum_v p[v] (lse - x[v]); a term with p[v] = 0 is 0, even if x[v] is -infinity."""
    cdef float terms[BLOCK]
    cdef double total = 0
    cdef Py_ssize_t v, b, size
    for b in range((V + BLOCK - 1) // BLOCK):
        size = min(BLOCK, V - b * BLOCK)
        for v in range(size):
            terms[v] = p[b * BLOCK + v] * (log_sum + (top - x[b * BLOCK + v]))
            terms[v] = terms[v] if p[b * BLOCK + v] != 0 else 0
        total += sum_(terms, size)
    return total


cdef inline void _scaled_softmax(
    float* dx, const float* x, float lse, float scale, Py_ssize_t V
) noexcept nogil:
    """dx[v] = scale exp(x[v] - lse). It works on dx alone, so it vectorises in place too."""
    cdef float* block
    cdef Py_ssize_t b, v, size
    for b in range((V + BLOCK - 1) // BLOCK):
        block = dx + b * BLOCK
        size = min(BLOCK, V - b * BLOCK)
        if dx != x:
            memcpy(block, x + b * BLOCK, size * sizeof(float))
        for v in range(size):
            block[v] = scale * exp_(block[v] - lse)


cdef void _sum_tasks(Labelled* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """lse of the rows of some tasks, the sum of their losses, and how many of them are valid."""
    cdef double* losses = <double*>a.workspace
    cdef double* counts = losses + TASKS
    cdef const float* x
    cdef float top, log_sum
    cdef Py_ssize_t task, n, V = a.V
    for task in range(first, last):
        losses[task] = counts[task] = 0
        for n in range(a.N * task // TASKS, a.N * (task + 1) // TASKS):
            x = a.logits + n * V
            top = max_(x, V)
            log_sum = log(exp_sum(NULL, x, top, V))
            a.lse[n] = top + log_sum
            if Labelled is ForwardDense:
                if not _all_zero(a.labels + n * V, V):
                    losses[task] += _dense_loss(x, a.labels + n * V, top, log_sum, V)
                    counts[task] += 1
            elif 0 <= a.labels[n] < V:
                losses[task] += log_sum + (top - x[a.labels[n]])
                counts[task] += 1


cdef void _mean(Labelled* a) noexcept nogil:
    cdef double[2 * TASKS] losses
    cdef double total = 0, count = 0
    cdef Py_ssize_t task
    cdef Labelled own = a[0]
    own.workspace = losses
    parallel_for(<part_fn>_sum_tasks[Labelled], &own, TASKS)
    for task in range(TASKS):
        total += losses[task]
        count += losses[TASKS + task]
    a.loss[0] = total / count if count else NAN
    a.rows[0] = count


cdef inline void backward_row(
    float* dlogits, float dloss, const float* logits, int labels, float lse, float rows,
    Py_ssize_t V,
) noexcept nogil:
    if 0 <= labels < V:
        _scaled_softmax(dlogits, logits, lse, dloss / rows, V)
        dlogits[labels] -= dloss / rows
    else:
        memset(dlogits, 0, V * sizeof(float))


cdef inline void backward_dense_row(
    float* dlogits, float dloss, const float* logits, const float* labels, float lse, float rows,
    Py_ssize_t V,
) noexcept nogil:
    cdef Py_ssize_t v
    cdef float scale = dloss / rows
    if _all_zero(labels, V):
        memset(dlogits, 0, V * sizeof(float))
        return
    _scaled_softmax(dlogits, logits, lse, scale * sum_(labels, V), V)
    for v in range(V):
        dlogits[v] -= scale * labels[v]


forward = entry(
    <kernel_fn>_mean[Forward],
    "loss[1]; lse[N] rows[1] <- logits[N V] i32 labels[N]<V,-100",
)
forward_dense = entry(
    <kernel_fn>_mean[ForwardDense], "loss[1]; lse[N] rows[1] <- logits[N V] labels[N V]"
)
backward = entry(
    "rows N: dlogits[N V]=logits <- dloss[1] logits[N V] i32 labels[N]<V,-100 lse[N] rows[1]"
)
backward_dense = entry(
    "rows N: dlogits[N V]=logits <- dloss[1] logits[N V] labels[N V] lse[N] rows[1]"
)
