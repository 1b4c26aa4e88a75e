"""Cross-entropy where the logits come in chunks of rows, and no chunk outlives its turn.

    count     rows         = number of labels that count
    forward   losses[n]    = log sum_v e^x[n,v] - x[n,labels[n]]
    backward  dlogits[n,v] = dloss/rows (e^x[n,v] / sum_k e^x[n,k] - [v = labels[n]]);  losses too
    mean      loss         = 1/rows sum_n losses[n]
    each      dlogits[n,v] = dlosses[n] (e^x[n,v] / sum_k e^x[n,k] - [v = labels[n]])

x are the logits of N rows, V classes each. A row whose label is -100 does not count: its loss and
dlogits are 0. No row counts: loss is NaN. For one chunk of rows, backward is forward as well: it
reads the row while it is in cache, and its losses are forward's to the bit. So rows must be known
before; each is the gradient of forward where losses are wanted one by one. float32, labels int32;
losses and dlogits are overwritten; dlogits may be the logits.
The Python doors refuse a label outside 0..V-1; the entries take such a row as ignored.
Source: cross_entropy.pyx; that losses need no logits beyond a chunk: Hsu et al. 2024, Liger Kernel,
arXiv:2410.10989, section 3.2.
"""
from libc.math cimport NAN, log
from libc.string cimport memset

from toynn._kernels._common cimport at1, at2, ids1, max_
from toynn._kernels._entry cimport entry
from toynn._kernels._logits cimport IGNORED, exp_sum
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline float _row(float* dx, const float* x, int id, float scale, Py_ssize_t V) noexcept nogil:
    """The loss of a row; its gradient goes to dx, which may be x, unless that is NULL."""
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


cdef void _count(KernelArgs* a) noexcept nogil:
    cdef float* rows = <float*>a.t[0]
    cdef const int* labels = <const int*>a.t[1]
    cdef Py_ssize_t n, found = 0, N = a.n[0], V = a.n[1]
    for n in range(N):
        found += 0 <= labels[n] < V
    rows[0] = found


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* losses = <float*>a.t[0]
    cdef const float* logits = <const float*>a.t[1]
    cdef const int* labels = <const int*>a.t[2]
    cdef Py_ssize_t n, V = a.n[1]
    for n in range(first, last):
        losses[n] = _row(NULL, logits + n * V, labels[n], 0, V)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_forward_rows, a, N)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dlogits = <float*>a.t[0]
    cdef float* losses = <float*>a.t[1]
    cdef const float* dloss = <const float*>a.t[2]
    cdef const float* logits = <const float*>a.t[3]
    cdef const int* labels = <const int*>a.t[4]
    cdef const float* rows = <const float*>a.t[5]
    cdef float scale = dloss[0] / rows[0]
    cdef Py_ssize_t n, V = a.n[1]
    for n in range(first, last):
        losses[n] = _row(dlogits + n * V, logits + n * V, labels[n], scale, V)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_backward_rows, a, N)


cdef void _each_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dlogits = <float*>a.t[0]
    cdef const float* dlosses = <const float*>a.t[1]
    cdef const float* logits = <const float*>a.t[2]
    cdef const int* labels = <const int*>a.t[3]
    cdef Py_ssize_t n, V = a.n[1]
    for n in range(first, last):
        _row(dlogits + n * V, logits + n * V, labels[n], dlosses[n], V)


cdef void _each(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_each_rows, a, N)


cdef void _mean(KernelArgs* a) noexcept nogil:
    """One sum, in double, in order."""
    cdef float* loss = <float*>a.t[0]
    cdef const float* losses = <const float*>a.t[1]
    cdef float rows = (<const float*>a.t[2])[0]
    cdef double total = 0
    cdef Py_ssize_t n, N = a.n[0]
    for n in range(N):
        total += losses[n]
    loss[0] = total / rows if rows else NAN


def _check_labels(where, const int[::1] labels, Py_ssize_t V):
    """Raise ValueError at the first label that is neither IGNORED nor in 0..V-1."""
    cdef Py_ssize_t n
    for n in range(labels.shape[0]):
        if labels[n] != IGNORED and not 0 <= labels[n] < V:
            raise ValueError(
                f"{where}: row {n}: label {labels[n]} is outside 0..{V - 1} and not {IGNORED}"
            )


def count(float[::1] rows, const int[::1] labels, Py_ssize_t classes, int n_threads=1):
    """Overwrite rows (1,): how many of labels (N,) are one of so many classes, not ignored."""
    cdef KernelArgs a
    _check_labels("chunked_cross_entropy.count", labels, classes)
    check("chunked_cross_entropy.count", "one number", n_threads, rows=(rows, (1,)))
    a.t[0], a.t[1] = at1(rows), ids1(labels)
    a.n[0], a.n[1] = labels.shape[0], classes
    _count(&a)


def forward(
    float[::1] losses, const float[:, ::1] logits, const int[::1] labels, int n_threads=1
):
    """Overwrite losses (N,) from logits (N,V) and labels (N,)."""
    cdef KernelArgs a
    cdef str where = "chunked_cross_entropy.forward"
    cdef Py_ssize_t N = logits.shape[0], V = logits.shape[1]
    _check_labels(where, labels, V)
    check(where, f"logits ({N}, {V})", n_threads, losses=(losses, (N,)), labels=(labels, (N,)))
    a.t[0], a.t[1], a.t[2] = at1(losses), at2(logits), ids1(labels)
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dlogits, float[::1] losses, const float[::1] dloss, const float[:, ::1] logits,
    const int[::1] labels, const float[::1] rows, int n_threads=1,
):
    """Overwrite dlogits (N,V), which may be logits, and losses (N,); rows (1,) is of all chunks."""
    cdef KernelArgs a
    cdef str where = "chunked_cross_entropy.backward"
    cdef Py_ssize_t N = logits.shape[0], V = logits.shape[1]
    _check_labels(where, labels, V)
    check(
        where, f"logits ({N}, {V})", n_threads, dlogits=(dlogits, (N, V)), losses=(losses, (N,)),
        dloss=(dloss, (1,)), labels=(labels, (N,)), rows=(rows, (1,)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dlogits), at1(losses), at1(dloss)
    a.t[3], a.t[4], a.t[5] = at2(logits), ids1(labels), at1(rows)
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


def each(
    float[:, ::1] dlogits, const float[::1] dlosses, const float[:, ::1] logits,
    const int[::1] labels, int n_threads=1,
):
    """Overwrite dlogits (N,V), which may be logits, from the gradients of the losses (N,)."""
    cdef KernelArgs a
    cdef str where = "chunked_cross_entropy.each"
    cdef Py_ssize_t N = logits.shape[0], V = logits.shape[1]
    _check_labels(where, labels, V)
    check(
        where, f"logits ({N}, {V})", n_threads, dlogits=(dlogits, (N, V)),
        dlosses=(dlosses, (N,)), labels=(labels, (N,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dlogits), at1(dlosses), at2(logits), ids1(labels)
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        _each(&a)


def mean(float[::1] loss, const float[::1] losses, const float[::1] rows, int n_threads=1):
    """Overwrite loss (1,) from losses (N,) and rows (1,), how many of them count."""
    cdef KernelArgs a
    check(
        "chunked_cross_entropy.mean", "one number", n_threads, loss=(loss, (1,)), rows=(rows, (1,))
    )
    a.t[0], a.t[1], a.t[2] = at1(loss), at1(losses), at1(rows)
    a.n[0] = losses.shape[0]
    _mean(&a)


entries = {
    "count": entry(_count, "rows labels", sizes="N V"),
    "forward": entry(_forward, "losses logits labels", sizes="N V"),
    "backward": entry(_backward, "dlogits losses dloss logits labels rows", sizes="N V"),
    "each": entry(_each, "dlogits dlosses logits labels", sizes="N V"),
    "mean": entry(_mean, "loss losses rows", sizes="N"),
}
