"""Rows or blocks of work, dealt to threads.

Each thread gets a stretch of neighbours, and computes with denormals flushed (fpstate.h). What a
row or a block yields must not depend on who computes it, nor on where the stretches end.
"""
from cython.parallel cimport parallel, prange

from toynn._kernels._common cimport flush_denormals, fpstate, restore_fpstate, team
from toynn._kernels.abi cimport KernelArgs

# Computes first .. last - 1 of what the arguments describe: KernelArgs, by whatever names.
ctypedef void (*part_fn)(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil


cdef inline void parallel_for(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """Have a.n_threads threads compute all of 0 .. n - 1; return when they have."""
    parallel_blocks(part, a, n, 1)


cdef inline void parallel_blocks(
    part_fn part, void* args, Py_ssize_t n, Py_ssize_t block
) noexcept nogil:
    """The same, where stretches begin at multiples of ``block`` only.

    One thread does so without a parallel region: entering one takes longer than a small kernel.
    """
    cdef KernelArgs* a = <KernelArgs*>args
    cdef Py_ssize_t i, blocks = (n + block - 1) // block
    cdef fpstate before = 0
    if a.n_threads == 1:
        before = flush_denormals()
        part(a, 0, n)
        restore_fpstate(before)
        return
    with parallel(num_threads=team(a.n_threads)):
        before = flush_denormals()
        for i in prange(a.n_threads, schedule="static"):
            part(
                a, i * blocks // a.n_threads * block,
                min((i + 1) * blocks // a.n_threads * block, n),
            )
        restore_fpstate(before)
