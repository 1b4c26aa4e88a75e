# work(task, i, m): compute share i of m of the task, on its own thread.
ctypedef void (*work_fn)(void* task, int i, int m) noexcept nogil

cdef void run_on_threads(work_fn work, void* task, int n_threads) noexcept nogil
cdef Py_ssize_t take(Py_ssize_t* taken) noexcept nogil
cdef void set_count(Py_ssize_t* count, Py_ssize_t n) noexcept nogil
cdef void await_count(Py_ssize_t* count, Py_ssize_t n) noexcept nogil

# What `toynn bench --scaling` records: see Recording.
cdef bint recording() noexcept nogil
cdef void begin_launch() noexcept nogil
cdef void end_launch(const char* name, Py_ssize_t nbytes, long long wall) noexcept nogil
