"""How the elements of a pointwise op are dealt to threads."""
from toynn._kernels.base._parallel cimport parallel_blocks, part_fn

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void parallel_elements(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """Compute elements 0 .. n - 1 on the kernel's n_threads threads, in ranges of whole blocks."""
    parallel_blocks(part, a, n, BLOCK)
