"""Cross-entropy of logits that come in chunks of rows. One chunk at a time is in memory.

    count     rows         = number of labels
    forward   losses[n]    = log sum_v e^x[n,v] - x[n,labels[n]]
    backward  dlogits[n,v] = dloss/rows (e^x[n,v] / sum_k e^x[n,k] - [v = labels[n]]);  losses too
    mean      loss         = 1/rows sum_n losses[n]
    each      dlogits[n,v] = dlosses[n] (e^x[n,v] / sum_k e^x[n,k] - [v = labels[n]])

x are the logits of N rows, V classes each. A row whose label is -100 has none: its loss and
dlogits are 0. Without a labelled row, loss is NaN. backward also computes the losses of its rows,
while a row is in cache; they have the same bits as forward's. rows must be known before backward
runs. each is the gradient of forward if every loss has its own gradient. float32, labels int32;
losses and dlogits are overwritten; dlogits may be the logits.
The Python calls refuse a label outside 0..V-1. In a program such a row has no label.
Sources: those of cross_entropy.pyx; chunks: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989,
section 3.2.
"""
from libc.math cimport NAN, log
from libc.string cimport memset

from toynn._kernels.base._common cimport max_
from toynn._kernels.losses._logits cimport exp_sum
from toynn._kernels.base.entry cimport entry


cdef inline float _row(float* dx, const float* x, int id, float scale, Py_ssize_t V) noexcept nogil:
    """Return the loss of a row; store its gradient in dx (which may be x) unless dx is NULL."""
    cdef float top, loss, factor
    cdef double total
    cdef Py_ssize_t v
    if not 0 <= id < V:
        if dx != NULL:
            memset(dx, 0, V * sizeof(float))
        return 0
    top = max_(x, V)
    loss = top - x[id]
    total = exp_sum(dx, x, top, V)
    loss += <float>log(total)
    if dx != NULL:
        factor = <float>(scale / total)
        for v in range(V):
            dx[v] *= factor
        dx[id] -= scale
    return loss


cdef inline void count_once(
    float* rows, const int* labels, Py_ssize_t N, Py_ssize_t V
) noexcept nogil:
    cdef Py_ssize_t n, valid = 0
    for n in range(N):
        valid += 0 <= labels[n] < V
    rows[0] = valid


cdef inline void forward_row(
    float* losses, const float* logits, int labels, Py_ssize_t V
) noexcept nogil:
    losses[0] = _row(NULL, logits, labels, 0, V)


cdef inline void backward_row(
    float* dlogits, float* losses, float dloss, const float* logits, int labels, float rows,
    Py_ssize_t V,
) noexcept nogil:
    losses[0] = _row(dlogits, logits, labels, dloss / rows, V)


cdef inline void each_row(
    float* dlogits, float dlosses, const float* logits, int labels, Py_ssize_t V
) noexcept nogil:
    _row(dlogits, logits, labels, dlosses, V)


cdef inline void mean_once(
    float* loss, const float* losses, float rows, Py_ssize_t N
) noexcept nogil:
    """Add the losses in order, in double, on one thread."""
    cdef double total = 0
    cdef Py_ssize_t n
    for n in range(N):
        total += losses[n]
    loss[0] = total / rows if rows else NAN


count = entry("once: rows[1] <- i32 labels[N]<V,-100 | V")
forward = entry("rows N: losses[N] <- logits[N V] i32 labels[N]<V,-100")
backward = entry(
    "rows N: dlogits[N V]=logits losses[N] "
    "<- dloss[1] logits[N V] i32 labels[N]<V,-100 rows[1]"
)
each = entry("rows N: dlogits[N V]=logits <- dlosses[N] logits[N V] i32 labels[N]<V,-100")
mean = entry("once: loss[1] <- losses[N] rows[1]")
