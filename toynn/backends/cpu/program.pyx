"""The program: an array of kernel calls, run in one loop without Python.

Each call is a function pointer and its arguments. The loop also reads the clock once per call, so
that a profile of the real steps is always there; that costs some 25 ns a call. By the same times
it chooses the number of threads anew while other processes want the cores (thread_count.pyx).
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strchr

from toynn._kernels.abi cimport MAX_OPTIONS, MAX_SIZES, MAX_TENSORS, KernelArgs, kernel_fn
from toynn.backends.cpu.thread_count cimport ThreadCount

cdef extern from "platform.h" nogil:
    long long nanoseconds "tn_nanoseconds" () noexcept

cdef enum:
    MICRO_BATCH = 2  # toynn.backends.protocol.Accumulate


cdef struct Step:
    char segment
    kernel_fn kernel
    KernelArgs args
    int policy             # Accumulate: never, always, or as the micro-batch says
    int max_threads        # what its work is worth
    long long calls
    long long spent        # nanoseconds
    double usual           # nanoseconds that a call takes: an estimate, then as it was lately
    const int* count       # of valid rows; NULL: all
    Py_ssize_t size        # the slot of the size that counts them
    Py_ssize_t first, rows, per_row  # how many there may be; what the size is for one


cdef class CompiledProgram:
    """Kernel calls with resolved addresses. Keeps the buffers under them alive."""

    cdef Step* _steps
    cdef Py_ssize_t _size, _capacity
    cdef void* _workspace
    cdef object _buffers
    cdef ThreadCount _count
    cdef long long _short_handed

    def __cinit__(self, Py_ssize_t capacity, size_t workspace, list buffers):
        self._steps = <Step*>calloc(max(capacity, 1), sizeof(Step))
        if self._steps == NULL:
            raise MemoryError(f"program of {capacity} kernel calls")
        self._capacity = capacity
        self._workspace = <void*>workspace
        self._buffers = buffers
        self._count = ThreadCount(1)

    def __dealloc__(self):
        free(self._steps)

    def __reduce__(self):
        raise TypeError("a compiled program holds addresses and cannot be pickled")

    def append(self, str segment, kernel, list addresses, tuple sizes, tuple options, int policy,
               int max_threads, double seconds, size_t kept=0):
        """Add one kernel call: the kernel's capsule, the addresses of its tensors (0: none).

        Its work is worth ``max_threads`` threads, and takes one about so many ``seconds``. ``kept``
        is the address of what it finds in KernelArgs.kept.
        """
        if self._size == self._capacity:
            raise IndexError(f"program is full at {self._capacity} kernel calls")
        if (len(addresses) > MAX_TENSORS or len(sizes) > MAX_SIZES or len(options) > MAX_OPTIONS):
            raise ValueError(
                f"a kernel takes at most {MAX_TENSORS} tensors, {MAX_SIZES} sizes, {MAX_OPTIONS} "
                f"options; got {len(addresses)}, {len(sizes)}, {len(options)}"
            )
        cdef Step* step = &self._steps[self._size]
        cdef size_t address
        memset(step, 0, sizeof(Step))
        step.segment = ord(segment)
        step.kernel = <kernel_fn>PyCapsule_GetPointer(kernel, "toynn.kernel")
        for i in range(len(addresses)):
            address = addresses[i]
            step.args.t[i] = <void*>address
        for i in range(len(sizes)):
            step.args.n[i] = sizes[i]
        for i in range(len(options)):
            step.args.f[i] = options[i]
        step.args.workspace = self._workspace
        step.args.kept = <const void*>kept
        step.policy = policy
        step.max_threads = max_threads
        step.usual = 1e9 * seconds / max_threads
        self._size += 1

    def limit(self, size_t count, Py_ssize_t size, Py_ssize_t first, Py_ssize_t rows):
        """Have the last call compute valid rows only: as many as the i32 at ``count``, less first.

        Size number ``size`` counts ``rows`` rows, perhaps several times each.
        """
        cdef Step* step = &self._steps[self._size - 1]
        if rows < 1 or step.args.n[size] % rows:
            raise ValueError(f"a size of {step.args.n[size]} does not count {rows} rows")
        step.count = <const int*>count
        step.size, step.first, step.rows = size, first, rows
        step.per_row = step.args.n[size] // rows

    def run(self, str segments, bint accumulate, int n_threads, Py_ssize_t first=0, end=None):
        """Run the calls of these segments, in order; ``accumulate`` goes to those that follow it.

        Only calls ``first`` to ``end - 1`` are run. A segment is a letter of ASCII.
        """
        cdef Py_ssize_t last = self._size if end is None else end
        if not 0 <= first <= last <= self._size:
            raise IndexError(f"calls {first} to {last} of a program of {self._size}")
        cdef bytes letters = segments.encode("ascii")
        cdef const char* wanted = letters
        if self._count.full != n_threads:
            self._count = ThreadCount(n_threads)
        with nogil:
            self._run(wanted, accumulate, first, last)

    cdef void _run(
        self, const char* wanted, bint accumulate, Py_ssize_t first, Py_ssize_t end
    ) noexcept nogil:
        cdef Step* step
        cdef Py_ssize_t i, valid = 0
        cdef long long before = nanoseconds(), after
        for i in range(first, end):
            step = &self._steps[i]
            if strchr(wanted, step.segment) == NULL:
                continue
            step.args.accumulate = accumulate if step.policy == MICRO_BATCH else step.policy
            step.args.n_threads = min(step.max_threads, self._count.size)
            if step.count != NULL:
                valid = max(0, min(step.rows, step.count[0] - step.first))
                step.args.n[step.size] = valid * step.per_row
            step.kernel(&step.args)
            after = nanoseconds()
            step.calls += 1
            step.spent += after - before
            if self._count.full > 1 and step.max_threads > 1 and (
                step.count == NULL or valid == step.rows
            ):
                self._learn(step, after - before)
            before = after

    cdef void _learn(self, Step* step, long long took) noexcept nogil:
        """Compare a call with those before it: what is usual falls at once and rises slowly."""
        if step.args.n_threads < min(step.max_threads, self._count.full):
            self._short_handed += took
        self._count.note(step.usual, took)
        if step.calls == 1:
            step.usual = took
        elif not self._count.on_trial():
            step.usual = min(<double>took, step.usual * 33 / 32)

    def times(self):
        """Return (calls, nanoseconds) per call since the program was compiled."""
        return [(self._steps[i].calls, self._steps[i].spent) for i in range(self._size)]

    def short_handed(self):
        """Return the nanoseconds of calls on fewer threads than their work is worth."""
        return self._short_handed
