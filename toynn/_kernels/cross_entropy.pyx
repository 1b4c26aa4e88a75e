"""Cross-entropy of softmax(logits) against integer labels, or against dense label rows.

    lse[n]       = log sum_v exp(logits[n,v])
    loss         = 1/rows sum_n sum_v p[n,v] (lse[n] - logits[n,v])
    dlogits[n,v] = dloss/rows (s[n] exp(logits[n,v] - lse[n]) - p[n,v]),   s[n] = sum_v p[n,v]

p[n] is the one-hot row of labels[n], or labels[n] itself (_dense). rows counts the rows that count:
not those labelled -100, nor all-zero dense ones; their dlogits are 0. No row counts: loss is NaN.
N rows, V classes; float32, labels int32 or float32. dlogits may be logits; no other aliasing.
Saved for backward: lse (N,), rows (1,). The Python doors refuse a label outside 0..V-1; the
program's entries, whose caller has checked the labels, take such a row as ignored.
Over 200 lines, for two forms of labels with four doors: the row functions are shared.
Source: Bridle 1990; the shift by the row's maximum: Blanchard et al. 2021, IMA J. Numer. Anal. 41.
"""
from cython.parallel cimport parallel, prange
from libc.math cimport NAN, log
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport (
    at1, at2, exp_, flush_denormals, fpstate, ids1, max_, restore_fpstate, sum_, team,
)
from toynn._kernels._entry cimport entry
from toynn._kernels._logits cimport BLOCK, IGNORED, exp_sum
from toynn._kernels.abi cimport KernelArgs, kernel_fn

from toynn._kernels._check import check

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
    """sum_v p[v] (lse - x[v]); where p[v] is 0 it adds 0, even if x[v] is -infinity."""
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
    """dx[v] = scale exp(x[v] - lse). Works on dx alone, so that it is vector code in place too."""
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
    """lse of rows lo..hi-1, the sum of their losses and how many of them count."""
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


cdef void _forward_rows(KernelArgs* a, const int* ids, const float* dense) noexcept nogil:
    cdef float* loss = <float*>a.t[0]
    cdef float* lse = <float*>a.t[1]
    cdef float* rows = <float*>a.t[2]
    cdef const float* logits = <const float*>a.t[3]
    cdef Py_ssize_t task, N = a.n[0], V = a.n[1], count = 0
    cdef double[TASKS] losses
    cdef Py_ssize_t[TASKS] counts
    cdef double total = 0
    cdef fpstate before = 0
    with parallel(num_threads=team(a.n_threads)):
        before = flush_denormals()
        for task in prange(TASKS, schedule="static"):
            _task_forward(
                &losses[task], &counts[task], lse, logits, ids, dense,
                N * task // TASKS, N * (task + 1) // TASKS, V,
            )
        restore_fpstate(before)
    for task in range(TASKS):
        total += losses[task]
        count += counts[task]
    loss[0] = total / count if count else NAN
    rows[0] = count


cdef void _backward_rows(KernelArgs* a, const int* ids, const float* dense) noexcept nogil:
    cdef float* dlogits = <float*>a.t[0]
    cdef const float* dloss = <const float*>a.t[1]
    cdef const float* logits = <const float*>a.t[2]
    cdef const float* lse = <const float*>a.t[4]
    cdef const float* rows = <const float*>a.t[5]
    cdef float scale = dloss[0] / rows[0]
    cdef Py_ssize_t n, N = a.n[0], V = a.n[1]
    cdef fpstate before = 0
    with parallel(num_threads=team(a.n_threads)):
        before = flush_denormals()
        for n in prange(N, schedule="static"):
            _row_backward(
                dlogits + n * V, logits + n * V, ids + n if ids else NULL,
                dense + n * V if dense else NULL, lse[n], scale, V,
            )
        restore_fpstate(before)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef const int* labels = <const int*>a.t[4]
    _forward_rows(a, labels, NULL)


cdef void _forward_dense(KernelArgs* a) noexcept nogil:
    cdef const float* labels = <const float*>a.t[4]
    _forward_rows(a, NULL, labels)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef const int* labels = <const int*>a.t[3]
    _backward_rows(a, labels, NULL)


cdef void _backward_dense(KernelArgs* a) noexcept nogil:
    cdef const float* labels = <const float*>a.t[3]
    _backward_rows(a, NULL, labels)


def _check_labels(where, const int[::1] labels, Py_ssize_t V):
    """Raise ValueError at the first label that is neither IGNORED nor in 0..V-1."""
    cdef Py_ssize_t n
    for n in range(labels.shape[0]):
        if labels[n] != IGNORED and not 0 <= labels[n] < V:
            raise ValueError(
                f"{where}: row {n}: label {labels[n]} is outside 0..{V - 1} and not {IGNORED}"
            )


cdef _run_forward(
    kernel_fn body, str where, float[::1] loss, float[::1] lse, float[::1] rows,
    const float[:, ::1] logits, labels, void* labels_data, int n_threads,
):
    cdef KernelArgs a
    cdef Py_ssize_t N = logits.shape[0], V = logits.shape[1]
    check(
        where, f"logits ({N}, {V})", n_threads, loss=(loss, (1,)), lse=(lse, (N,)),
        rows=(rows, (1,)), labels=(labels, (N, V)[:labels.ndim]),
    )
    a.t[0], a.t[1], a.t[2] = at1(loss), at1(lse), at1(rows)
    a.t[3], a.t[4] = at2(logits), labels_data
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        body(&a)


cdef _run_backward(
    kernel_fn body, str where, float[:, ::1] dlogits, const float[::1] dloss,
    const float[:, ::1] logits, labels, void* labels_data, const float[::1] lse,
    const float[::1] rows, int n_threads,
):
    cdef KernelArgs a
    cdef Py_ssize_t N = logits.shape[0], V = logits.shape[1]
    check(
        where, f"logits ({N}, {V})", n_threads, dlogits=(dlogits, (N, V)), dloss=(dloss, (1,)),
        labels=(labels, (N, V)[:labels.ndim]), lse=(lse, (N,)), rows=(rows, (1,)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dlogits), at1(dloss), at2(logits)
    a.t[3], a.t[4], a.t[5] = labels_data, at1(lse), at1(rows)
    a.n[0], a.n[1] = N, V
    a.n_threads = n_threads
    with nogil:
        body(&a)


def forward(
    float[::1] loss, float[::1] lse, float[::1] rows, const float[:, ::1] logits,
    const int[::1] labels, int n_threads=1,
):
    """Overwrite loss (1,), lse (N,), rows (1,) from logits (N,V) and labels (N,)."""
    cdef str where = "cross_entropy.forward"
    _check_labels(where, labels, logits.shape[1])
    _run_forward(_forward, where, loss, lse, rows, logits, labels, ids1(labels), n_threads)


def backward(
    float[:, ::1] dlogits, const float[::1] dloss, const float[:, ::1] logits,
    const int[::1] labels, const float[::1] lse, const float[::1] rows, int n_threads=1,
):
    """Overwrite dlogits (N,V), which may be logits, from dloss (1,) and what forward saved."""
    cdef str where = "cross_entropy.backward"
    _check_labels(where, labels, logits.shape[1])
    _run_backward(
        _backward, where, dlogits, dloss, logits, labels, ids1(labels), lse, rows, n_threads
    )


def forward_dense(
    float[::1] loss, float[::1] lse, float[::1] rows, const float[:, ::1] logits,
    const float[:, ::1] labels, int n_threads=1,
):
    """Overwrite loss (1,), lse (N,), rows (1,) from logits and labels (N,V)."""
    cdef str where = "cross_entropy.forward_dense"
    _run_forward(_forward_dense, where, loss, lse, rows, logits, labels, at2(labels), n_threads)


def backward_dense(
    float[:, ::1] dlogits, const float[::1] dloss, const float[:, ::1] logits,
    const float[:, ::1] labels, const float[::1] lse, const float[::1] rows, int n_threads=1,
):
    """Overwrite dlogits (N,V), which may be logits, from dloss (1,) and what forward saved."""
    cdef str where = "cross_entropy.backward_dense"
    _run_backward(
        _backward_dense, where, dlogits, dloss, logits, labels, at2(labels), lse, rows, n_threads
    )


entries = {
    "forward": entry(_forward, "loss lse rows logits labels", sizes="N V"),
    "backward": entry(_backward, "dlogits dloss logits labels lse rows", sizes="N V"),
    "forward_dense": entry(_forward_dense, "loss lse rows logits labels", sizes="N V"),
    "backward_dense": entry(_backward_dense, "dlogits dloss logits labels lse rows", sizes="N V"),
}
