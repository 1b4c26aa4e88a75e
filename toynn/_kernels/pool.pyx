"""The thread pool of this process: one, whatever modules and ISA levels use it (pool.h)."""
from toynn._kernels.pool cimport work_fn

cdef extern from "pool.h" nogil:
    void tn_run_on_threads(work_fn work, void* task, int n_threads) noexcept
    Py_ssize_t tn_take(Py_ssize_t* taken) noexcept


cdef void run_on_threads(work_fn work, void* task, int n_threads) noexcept nogil:
    """Call work(task, i, m), i = 0 .. m - 1, on m <= n_threads threads at once."""
    tn_run_on_threads(work, task, n_threads)


cdef Py_ssize_t take(Py_ssize_t* taken) noexcept nogil:
    """Return taken[0] and add 1 to it, as one step: no two threads get the same number."""
    return tn_take(taken)
