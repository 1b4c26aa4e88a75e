"""Rows or blocks of work, dealt to threads.

Each thread gets a stretch of neighbours, and computes with denormals flushed (fpstate.h). What a
row or a block yields must not depend on who computes it, nor on where the stretches end.
"""
from toynn._kernels._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.abi cimport KernelArgs
from toynn._kernels.pool cimport run_on_threads

# Computes first .. last - 1 of what a task describes: KernelArgs, by whatever names, or another.
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
    """Have up to n_threads threads compute all of 0 .. n - 1; return when they have.

    Stretches begin at multiples of ``block`` only. One thread is not asked of the pool.
    """
    cdef Dealt d = Dealt(part, task, n, block, flush)
    cdef Py_ssize_t m = min(<Py_ssize_t>n_threads, (n + block - 1) // block)
    if m <= 1:
        _stretch(&d, 0, 1)
    else:
        run_on_threads(_stretch, &d, <int>m)


cdef inline void parallel_for(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """The same on a.n_threads threads, for a kernel's arguments."""
    deal(part, a, n, (<KernelArgs*>a).n_threads)


cdef inline void parallel_blocks(
    part_fn part, void* a, Py_ssize_t n, Py_ssize_t block
) noexcept nogil:
    deal(part, a, n, (<KernelArgs*>a).n_threads, block)
