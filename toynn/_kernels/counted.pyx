"""Which rows count: those whose label is not -100, in order.

    rows[k] = n of the k-th row that counts     picked[k] = labels[rows[k]]     count = how many

labels, rows and picked are i32 (N,), count is i32 (). Behind the first ``count``, rows holds 0 and
picked -100. So the head, and all that is done with what it gives, has to look at rows that count
only. One thread: it takes as long as reading the labels.
"""
from toynn._kernels._common cimport ids1
from toynn._kernels._entry cimport entry
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    IGNORED = -100  # toynn.checks.IGNORED


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef int* rows = <int*>a.t[0]
    cdef int* picked = <int*>a.t[1]
    cdef int* count = <int*>a.t[2]
    cdef const int* labels = <const int*>a.t[3]
    cdef Py_ssize_t n, k = 0, N = a.n[0]
    for n in range(N):
        if labels[n] != IGNORED:
            rows[k] = n
            picked[k] = labels[n]
            k += 1
    count[0] = k
    for n in range(k, N):
        rows[n] = 0
        picked[n] = IGNORED


def forward(int[::1] rows, int[::1] picked, int[::1] count, const int[::1] labels, int n_threads=1):
    """Overwrite rows (N,), picked (N,) and count (1,) from labels (N,).

    Behind the rows that count, rows is 0 and picked -100.
    """
    cdef KernelArgs a
    cdef Py_ssize_t N = labels.shape[0]
    check(
        "counted.forward", f"labels ({N},)", n_threads, rows=(rows, (N,)), picked=(picked, (N,)),
        count=(count, (1,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = ids1(rows), ids1(picked), ids1(count), ids1(labels)
    a.n[0] = N
    with nogil:
        _forward(&a)


entries = {"forward": entry(_forward, "rows picked count labels", sizes="N")}
