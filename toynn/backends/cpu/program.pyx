"""The program: an array of kernel calls, run in one loop without Python.

Each call is a function pointer and its arguments. The loop also reads the clock once per call, at
about 25 ns, so that every run is profiled. With these times it also adapts the number of threads
while other processes want the cores (thread_count.pyx). Where ops.numpy has a function, the loop is
left, and begun again behind it.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strchr

from toynn._kernels.base.abi cimport MAX_OPTIONS, MAX_SIZES, MAX_TENSORS, KernelArgs, kernel_fn
from toynn._kernels.base.pool cimport begin_launch, end_launch, recording
from toynn.backends.cpu.thread_count cimport ThreadCount

cdef extern from "platform.h" nogil:
    long long nanoseconds "tn_nanoseconds" () noexcept

cdef enum:
    MICRO_BATCH = 2  # toynn.backends.protocol.Accumulate


cdef struct Step:
    char phase
    kernel_fn kernel
    const char* name       # in _names
    Py_ssize_t nbytes
    KernelArgs args
    int policy             # Accumulate: never, always, or by micro-batch
    int max_threads        # as many as its work pays
    long long calls
    long long spent        # nanoseconds
    double usual           # nanoseconds of a usual call: at first estimated, then measured
    const int* count       # the number of valid rows; NULL: all rows
    Py_ssize_t size        # the slot of the size that counts rows
    Py_ssize_t first, rows, per_row  # rows first .. first + rows - 1; what the size is per row


cdef class CompiledProgram:
    """Kernel calls with resolved addresses. Keeps the buffers under them alive."""

    cdef Step* _steps
    cdef Py_ssize_t _size, _capacity
    cdef void* _workspace
    cdef object _buffers
    cdef list _names
    cdef ThreadCount _count
    cdef long long _short_handed

    def __cinit__(self, Py_ssize_t capacity, size_t workspace, list buffers):
        self._steps = <Step*>calloc(max(capacity, 1), sizeof(Step))
        if self._steps == NULL:
            raise MemoryError(f"cannot allocate a program of {capacity} kernel calls")
        self._capacity = capacity
        self._workspace = <void*>workspace
        self._buffers, self._names = buffers, []
        self._count = ThreadCount(1)

    def __dealloc__(self):
        free(self._steps)

    def __reduce__(self):
        raise TypeError("a compiled program holds addresses and cannot be pickled")

    def append(self, str phase, kernel, list addresses, tuple sizes, tuple options, int policy,
               int max_threads, double seconds, size_t kept=0, str name="", Py_ssize_t nbytes=0):
        """Add one kernel call: the kernel's capsule, the addresses of its tensors (0: none).

        Its work pays for ``max_threads`` threads and takes one thread about ``seconds``. ``kept``
        is the address for KernelArgs.kept, or 0. Recordings tell its ``name``, and the ``nbytes``
        that it moves.
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
        self._names.append(name.encode("ascii"))
        step.name, step.nbytes = <const char*>self._names[self._size], nbytes
        step.phase = ord(phase)
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
        """Limit the last call to valid rows: as many as the i32 at ``count`` says, less ``first``.

        Size number ``size`` is ``rows``, or a multiple of it.
        """
        cdef Step* step = &self._steps[self._size - 1]
        if rows < 1 or step.args.n[size] % rows:
            raise ValueError(
                f"a limited size must be a multiple of its rows, {rows}; got {step.args.n[size]}"
            )
        step.count = <const int*>count
        step.size, step.first, step.rows = size, first, rows
        step.per_row = step.args.n[size] // rows

    def skip(self, str name):
        """Add a call that no run makes: a function of Python is called in its place."""
        if self._size == self._capacity:
            raise IndexError(f"program is full at {self._capacity} kernel calls")
        memset(&self._steps[self._size], 0, sizeof(Step))
        self._steps[self._size].phase = b"-"
        self._names.append(name.encode())
        self._size += 1

    def run(self, str phases, bint accumulate, int n_threads, Py_ssize_t first=0, end=None):
        """Run the calls of these phases, in order. A phase is an ASCII letter.

        ``accumulate`` is for calls whose policy is Accumulate.MICRO_BATCH. Only calls ``first`` to
        ``end - 1`` run.
        """
        cdef Py_ssize_t last = self._size if end is None else end
        if not 0 <= first <= last <= self._size:
            raise IndexError(f"calls {first} to {last} of a program of {self._size}")
        cdef bytes letters = phases.encode("ascii")
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
        cdef bint recorded = recording()
        cdef long long before = nanoseconds(), after
        for i in range(first, end):
            step = &self._steps[i]
            if strchr(wanted, step.phase) == NULL:
                continue
            step.args.accumulate = accumulate if step.policy == MICRO_BATCH else step.policy
            step.args.n_threads = min(
                step.max_threads, self._count.full if recorded else self._count.size
            )
            if step.count != NULL:
                valid = max(0, min(step.rows, step.count[0] - step.first))
                step.args.n[step.size] = valid * step.per_row
            if recorded:
                begin_launch()
            step.kernel(&step.args)
            after = nanoseconds()
            if recorded:
                end_launch(step.name, step.nbytes, after - before)
            step.calls += 1
            step.spent += after - before
            if self._count.full > 1 and step.max_threads > 1 and not recorded and (
                step.count == NULL or valid == step.rows
            ):
                self._learn(step, after - before)
            before = after

    cdef void _learn(self, Step* step, long long took) noexcept nogil:
        """Compare a call's time with the usual one, which falls at once and rises slowly."""
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
        """Return the nanoseconds of calls that ran on fewer threads than their work pays."""
        return self._short_handed
