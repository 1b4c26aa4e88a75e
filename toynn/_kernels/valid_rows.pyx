"""The valid rows: those whose label is not -100, in order.

    rows[k] = n of the k-th valid row     picked[k] = labels[rows[k]]     count = how many

labels, rows and picked are i32 (N,), count is i32 (1,). After the first ``count``, rows holds 0 and
picked -100. So the head and the loss are computed for valid rows only. One thread: it takes as long
as reading the labels.
"""
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.valid_rows cimport Forward
from toynn._kernels.entry cimport entry

cdef enum:
    IGNORED = -100  # toynn.numerics.checks.IGNORED


cdef void _forward(Forward* a) noexcept nogil:
    cdef Py_ssize_t n, k = 0
    for n in range(a.N):
        if a.labels[n] != IGNORED:
            a.rows[k] = n
            a.picked[k] = a.labels[n]
            k += 1
    a.count[0] = k
    for n in range(k, a.N):
        a.rows[n] = 0
        a.picked[n] = IGNORED


forward = entry(<kernel_fn>_forward, "i32 rows[N] i32 picked[N] i32 count[1] <- i32 labels[N]")
