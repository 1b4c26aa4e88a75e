"""Rows or blocks of work, dealt to threads.

Each thread gets a contiguous range and computes with denormals flushed (fpstate.h). The result of
a row or block must depend neither on the thread that computes it nor on where the ranges end.
"""
from toynn._kernels._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.abi cimport KernelArgs
from toynn._kernels.pool cimport run_on_threads

# Computes items first .. last - 1 of a task: KernelArgs, by the names of a signature, or a struct.
ctypedef void (*part_fn)(void* task, Py_ssize_t first, Py_ssize_t last) noexcept nogil

cdef struct Dealt:
    part_fn part
    void* task
    Py_ssize_t n, block
    bint flush


cdef inline void _stretch(void* dealt, int i, int m) noexcept nogil:
    cdef const Dealt* d = <const Dealt*>dealt
    cdef Py_ssize_t blocks = (d.n + d.block - 1) // d.block
    cdef fpstate before = flush_denormals() if d.flush else 0
    d.part(d.task, i * blocks // m * d.block, min((i + 1) * blocks // m * d.block, d.n))
    if d.flush:
        restore_fpstate(before)


cdef inline void deal(
    part_fn part, void* task, Py_ssize_t n, int n_threads, Py_ssize_t block=1, bint flush=True
) noexcept nogil:
    """Compute items 0 .. n - 1 on up to n_threads threads; return when all are done.

    Ranges begin at multiples of ``block``. A single range runs on the caller's thread.
    """
    cdef Dealt d = Dealt(part, task, n, block, flush)
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
