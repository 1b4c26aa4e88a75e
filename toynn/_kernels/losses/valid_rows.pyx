"""The labelled rows: those whose label is not -100, in order.

    rows[k] = n of the k-th labelled row     picked[k] = labels[rows[k]]     count = how many

labels, rows and picked are i32 (N,), count is i32 (1,). After the first ``count``, rows holds 0 and
picked -100. So the head and the loss are computed for labelled rows only. One thread: it takes as
long as reading the labels.
"""
from toynn._kernels.base.entry cimport entry

cdef enum:
    IGNORED = -100  # toynn.numerics.checks.IGNORED


cdef inline void forward_once(
    int* rows, int* picked, int* count, const int* labels, Py_ssize_t N
) noexcept nogil:
    cdef Py_ssize_t n, k = 0
    for n in range(N):
        if labels[n] != IGNORED:
            rows[k], picked[k] = n, labels[n]
            k += 1
    count[0] = k
    for n in range(k, N):
        rows[n], picked[n] = 0, IGNORED


forward = entry("once: i32 rows[N] i32 picked[N] i32 count[1] <- i32 labels[N]")
