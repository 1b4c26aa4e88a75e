"""Cross-entropy of softmax(logits) against integer labels, or against dense label rows.

    lse[n]       = log sum_v exp(logits[n,v])
    loss         = 1/rows sum_n sum_v p[n,v] (lse[n] - logits[n,v])
    dlogits[n,v] = dloss/rows (s[n] exp(logits[n,v] - lse[n]) - p[n,v]),   s[n] = sum_v p[n,v]

p[n] is the one-hot row of labels[n], or labels[n] itself (_dense). rows counts the valid rows. A
row with the label -100, or a dense row of zeros, is not valid: its dlogits are 0. Without a valid
row, loss is NaN. N rows, V classes; float32, labels int32 or float32. dlogits may be logits; no
other aliasing. Saved for backward: lse (N,), rows (1,). The Python calls refuse a label outside
0..V-1. A program's caller has checked the labels; its entries ignore such a row.
Source: Bridle 1990; the shift by the row's maximum: Blanchard et al. 2021, IMA J. Numer. Anal. 41.
"""
from libc.math cimport NAN, log
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport exp_, max_, sum_
from toynn._kernels._logits cimport BLOCK, exp_sum
from toynn._kernels._parallel cimport deal
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.cross_entropy cimport Backward, BackwardDense, Forward, ForwardDense
from toynn._kernels.entry cimport entry

cdef enum:
    TASKS = 256  # groups of rows, each with its own sum of losses: fixed for any thread count


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


cdef inline void _task_forward(
    double* loss, Py_ssize_t* count, float* lse, const float* logits, const int* ids,
    const float* dense, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t V,
) noexcept nogil:
    """lse of rows lo..hi-1, the sum of their losses, and how many of them are valid."""
    cdef const float* x
    cdef float top, log_sum
    cdef Py_ssize_t n
    loss[0] = 0
    count[0] = 0
    for n in range(lo, hi):
        x = logits + n * V
        top = max_(x, V)
        log_sum = log(exp_sum(NULL, x, top, V))
        lse[n] = top + log_sum
        if dense is not NULL:
            if not _all_zero(dense + n * V, V):
                loss[0] += _dense_loss(x, dense + n * V, top, log_sum, V)
                count[0] += 1
        elif ids is not NULL and 0 <= ids[n] < V:
            loss[0] += log_sum + (top - x[ids[n]])
            count[0] += 1


cdef inline void _row_backward(
    float* dx, const float* x, const int* id, const float* p, float lse, float scale, Py_ssize_t V
) noexcept nogil:
    cdef Py_ssize_t v
    if p is not NULL and not _all_zero(p, V):
        _scaled_softmax(dx, x, lse, scale * sum_(p, V), V)
        for v in range(V):
            dx[v] -= scale * p[v]
    elif id is not NULL and 0 <= id[0] < V:
        _scaled_softmax(dx, x, lse, scale, V)
        dx[id[0]] -= scale
    else:
        memset(dx, 0, V * sizeof(float))


cdef struct Losses:
    const Forward* a
    const int* ids       # one of the two forms of labels, the other NULL
    const float* dense
    double each[TASKS]
    Py_ssize_t counts[TASKS]


cdef struct Gradients:
    const Backward* a
    const int* ids
    const float* dense
    float scale


cdef void _forward_tasks(void* losses, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Losses* x = <Losses*>losses
    cdef const Forward* a = x.a
    cdef Py_ssize_t task
    for task in range(first, last):
        _task_forward(
            &x.each[task], &x.counts[task], a.lse, a.logits, x.ids, x.dense,
            a.N * task // TASKS, a.N * (task + 1) // TASKS, a.V,
        )


cdef void _backward_rows(void* gradients, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Gradients* x = <const Gradients*>gradients
    cdef const Backward* a = x.a
    cdef Py_ssize_t n
    for n in range(first, last):
        _row_backward(
            a.dlogits + n * a.V, a.logits + n * a.V, x.ids + n if x.ids else NULL,
            x.dense + n * a.V if x.dense else NULL, a.lse[n], x.scale, a.V,
        )


cdef void _forward_either(Forward* a, const int* ids, const float* dense) noexcept nogil:
    cdef Losses losses
    cdef Py_ssize_t task, count = 0
    cdef double total = 0
    losses.a, losses.ids, losses.dense = a, ids, dense
    deal(_forward_tasks, &losses, TASKS, a.n_threads)
    for task in range(TASKS):
        total += losses.each[task]
        count += losses.counts[task]
    a.loss[0] = total / count if count else NAN
    a.rows[0] = count


cdef void _backward_either(Backward* a, const int* ids, const float* dense) noexcept nogil:
    cdef Gradients x = Gradients(a, ids, dense, a.dloss[0] / a.rows[0])
    deal(_backward_rows, &x, a.N, a.n_threads)


cdef void _forward(Forward* a) noexcept nogil:
    _forward_either(a, a.labels, NULL)


cdef void _forward_dense(ForwardDense* a) noexcept nogil:
    _forward_either(<Forward*>a, NULL, a.labels)  # the same slots


cdef void _backward(Backward* a) noexcept nogil:
    _backward_either(a, a.labels, NULL)


cdef void _backward_dense(BackwardDense* a) noexcept nogil:
    _backward_either(<Backward*>a, NULL, a.labels)  # the same slots


forward = entry(<kernel_fn>_forward, "loss[1]; lse[N] rows[1] <- logits[N V] i32 labels[N]<V,-100")
backward = entry(
    <kernel_fn>_backward,
    "dlogits[N V]=logits "
    "<- dloss[1] logits[N V] i32 labels[N]<V,-100 lse[N] rows[1]",
)
forward_dense = entry(
    <kernel_fn>_forward_dense, "loss[1]; lse[N] rows[1] <- logits[N V] labels[N V]"
)
backward_dense = entry(
    <kernel_fn>_backward_dense,
    "dlogits[N V]=logits "
    "<- dloss[1] logits[N V] labels[N V] lse[N] rows[1]",
)
