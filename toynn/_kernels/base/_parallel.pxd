"""Rows or blocks of work, dealt to threads.

Each thread gets a contiguous range and computes with denormals flushed (fpstate.h). Of many blocks
each thread gets only half of its share, always the same, so that its rows are in its cache. Threads
take the rest piece by piece as they finish: slow cores take less. The result of a row or block must
depend neither on the thread that computes it nor on where the ranges end.
"""
from toynn._kernels.base._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.base.abi cimport KernelArgs
from toynn._kernels.base.pool cimport run_on_threads, take

cdef enum:
    MANY = 8    # blocks for each thread, of which half are taken piece by piece
    PIECES = 2  # for each thread

# Computes items first .. last - 1 of a task: KernelArgs, by the names of a signature, or a struct.
ctypedef void (*part_fn)(void* task, Py_ssize_t first, Py_ssize_t last) noexcept nogil

cdef struct Dealt:
    part_fn part
    void* task
    Py_ssize_t n, block
    bint flush
    bint each         # threads take block by block
    Py_ssize_t taken  # pieces


cdef inline void _compute(Dealt* d, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Compute blocks first .. last - 1."""
    d.part(d.task, first * d.block, min(last * d.block, d.n))


cdef inline void _stretch(void* dealt, int i, int m) noexcept nogil:
    cdef Dealt* d = <Dealt*>dealt
    cdef Py_ssize_t blocks = (d.n + d.block - 1) // d.block, fixed = blocks, piece, t
    cdef fpstate before = flush_denormals() if d.flush else 0
    if m > 1 and d.each:
        fixed = 0
    elif m > 1 and blocks >= MANY * m:
        fixed = blocks // 2
    if fixed:
        _compute(d, i * fixed // m, (i + 1) * fixed // m)
    if fixed < blocks:
        piece = 1 if d.each else (blocks - fixed) // (PIECES * m)
        t = fixed + take(&d.taken) * piece
        while t < blocks:
            _compute(d, t, min(t + piece, blocks))
            t = fixed + take(&d.taken) * piece
    if d.flush:
        restore_fpstate(before)


cdef inline void deal(
    part_fn part, void* task, Py_ssize_t n, int n_threads, Py_ssize_t block=1, bint flush=True,
    bint each=False,
) noexcept nogil:
    """Compute items 0 .. n - 1 on up to n_threads threads; return when all are done.

    Ranges begin at multiples of ``block``. A single range runs on the caller's thread. With
    ``each``, threads take the blocks one by one.
    """
    cdef Dealt d = Dealt(part, task, n, block, flush, each, 0)
    cdef Py_ssize_t m = min(<Py_ssize_t>n_threads, (n + block - 1) // block)
    if m <= 1:
        _stretch(&d, 0, 1)
    else:
        run_on_threads(_stretch, &d, <int>m)


cdef inline void parallel_for(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """The same for a kernel's arguments, on its a.n_threads threads."""
    deal(part, a, n, (<KernelArgs*>a).n_threads)


cdef inline void parallel_blocks(
    part_fn part, void* a, Py_ssize_t n, Py_ssize_t block
) noexcept nogil:
    deal(part, a, n, (<KernelArgs*>a).n_threads, block)


cdef inline void parallel_each(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """The same for items that differ in size, the largest first: threads take them one by one."""
    deal(part, a, n, (<KernelArgs*>a).n_threads, 1, True, True)


# -- Tasks with room -------------------------------------------------------------------------------

# Computes item i of a task, with scratch memory of its thread's own.
ctypedef void (*room_fn)(void* task, void* room, Py_ssize_t i) noexcept nogil

cdef struct Rooms:
    room_fn part
    void* task
    Py_ssize_t n, taken, nbytes
    char* rooms


cdef inline void _in_room(void* rooms, int i, int m) noexcept nogil:
    cdef Rooms* x = <Rooms*>rooms
    cdef fpstate before = flush_denormals()
    cdef Py_ssize_t t = take(&x.taken)
    while t < x.n:
        x.part(x.task, x.rooms + i * x.nbytes, t)
        t = take(&x.taken)
    restore_fpstate(before)


cdef inline void deal_rooms(
    room_fn part, void* task, Py_ssize_t n, int n_threads, void* rooms, Py_ssize_t nbytes
) noexcept nogil:
    """Compute items 0 .. n - 1, the largest first: threads take them one by one.

    ``rooms`` has ``nbytes`` for each thread.
    """
    cdef Rooms x = Rooms(part, task, n, 0, nbytes, <char*>rooms)
    cdef Py_ssize_t m = min(<Py_ssize_t>n_threads, n)
    if m <= 1:
        _in_room(&x, 0, 1)
    else:
        run_on_threads(_in_room, &x, <int>m)
