"""The thread pool of this process (pool.h): one for all modules and ISA levels."""
from libc.stdlib cimport free, malloc

from toynn._kernels.base.pool cimport work_fn

cdef extern from "pool.h" nogil:
    ctypedef struct tn_recording:
        long long* numbers
        Py_ssize_t size, capacity
        bint alone
    void tn_run_on_threads(work_fn work, void* task, int n_threads) noexcept
    Py_ssize_t tn_take(Py_ssize_t* taken) noexcept
    void tn_set_count(Py_ssize_t* count, Py_ssize_t n) noexcept
    void tn_await_count(Py_ssize_t* count, Py_ssize_t n) noexcept
    int tn_refused() noexcept
    void tn_ask_again() noexcept
    void tn_begin_recording(tn_recording* to) noexcept
    void tn_begin_launch() noexcept
    void tn_end_launch(const char* name, long long nbytes, long long wall) noexcept
    enum:
        TN_MOST_THREADS
        TN_BEGIN
        TN_CALL
        TN_CALL_HEAD
        TN_LAUNCH
    tn_recording* tn_recorder

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


cdef void set_count(Py_ssize_t* count, Py_ssize_t n) noexcept nogil:
    """Tell other threads that a count, which only grows, is n now."""
    tn_set_count(count, n)


cdef void await_count(Py_ssize_t* count, Py_ssize_t n) noexcept nogil:
    """Wait until a count is at least n. A thread must have begun what sets it."""
    tn_await_count(count, n)


cdef bint recording() noexcept nogil:
    """Whether this thread records its calls."""
    return tn_recorder != NULL


cdef void begin_launch() noexcept nogil:
    """While recording: a launch begins."""
    tn_begin_launch()


cdef void end_launch(const char* name, Py_ssize_t nbytes, long long wall) noexcept nogil:
    """While recording: the launch ends; ``name`` must outlive the recording."""
    tn_end_launch(name, nbytes, wall)


cdef class Recording:
    """Records the launches of this thread within a `with` block.

    If ``alone``, this thread computes all shares of a call itself, one after the other.
    """

    cdef tn_recording _to

    def __cinit__(self, bint alone=False, Py_ssize_t capacity=1 << 22):
        """Take room for ``capacity`` numbers, of 8 bytes."""
        self._to.numbers = <long long*>malloc(capacity * sizeof(long long))
        if self._to.numbers == NULL:
            raise MemoryError(f"cannot allocate a recording of {capacity} numbers")
        self._to.capacity, self._to.alone = capacity, alone

    def __dealloc__(self):
        free(self._to.numbers)

    def __reduce__(self):
        raise TypeError("a recording holds addresses and cannot be pickled")

    def __enter__(self):
        if tn_recorder != NULL:
            raise RuntimeError("pool.Recording: this thread records already; end that block first")
        tn_begin_recording(&self._to)
        return self

    def __exit__(self, *_):
        global tn_recorder
        tn_recorder = NULL

    def launches(self):
        """Return (name, nbytes, wall, cpu, calls) of each launch; times are nanoseconds.

        A call is (cpu, shares, pieces). cpu is the caller's CPU time, waiting included; shares has
        the CPU time of each share. If the recording is ``alone``, pieces has the CPU time of each
        piece that shares take one by one. Call this while the programs that ran still exist. Raises
        ValueError if the recording is full.
        """
        cdef Py_ssize_t i = 0, m, p
        cdef long long* at = self._to.numbers
        if self._to.size > self._to.capacity:
            raise ValueError(
                f"pool.Recording: {self._to.size} numbers came, and there is room for "
                f"{self._to.capacity}: record fewer runs"
            )
        launches, calls = [], []
        while i < self._to.size:
            if at[i] == TN_CALL:
                m, p, i = at[i + 1], at[i + 2], i + TN_CALL_HEAD
                shares = [at[k] for k in range(i, i + m)]
                calls.append((at[i - 1], shares, [at[k] for k in range(i + m, i + m + p)]))
                i += m + p
            elif at[i] == TN_LAUNCH:
                name = (<const char*><Py_ssize_t>at[i + 1]).decode("ascii")
                launches.append((name, at[i + 2], at[i + 3], at[i + 4], calls))
                i, calls = i + 5, []
            else:  # TN_BEGIN: calls outside of launches do not count
                i, calls = i + 1, []
        return launches
