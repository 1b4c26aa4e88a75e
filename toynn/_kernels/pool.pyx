"""The thread pool of this process (pool.h): one for all modules and ISA levels."""
from toynn._kernels.pool cimport work_fn

cdef extern from "pool.h" nogil:
    void tn_run_on_threads(work_fn work, void* task, int n_threads) noexcept
    Py_ssize_t tn_take(Py_ssize_t* taken) noexcept
    int tn_refused() noexcept
    void tn_ask_again() noexcept
    enum:
        TN_MOST_THREADS

MAX_THREADS = TN_MOST_THREADS


def refused():
    """Return how many threads there are, if the system refused another one; 0 if it did not."""
    return tn_refused()


def ask_again():
    """Forget that the system refused to start a thread: the next call asks it again."""
    tn_ask_again()


cdef void run_on_threads(work_fn work, void* task, int n_threads) noexcept nogil:
    """Call work(task, i, m), i = 0 .. m - 1, on m <= n_threads threads at once."""
    tn_run_on_threads(work, task, n_threads)


cdef Py_ssize_t take(Py_ssize_t* taken) noexcept nogil:
    """Return taken[0] and add 1 to it, as one step: no two threads get the same number."""
    return tn_take(taken)
