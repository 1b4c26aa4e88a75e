"""Sums over the rows of an array, for each of its columns: COLS columns are one task.

This cut does not depend on the number of threads, and a task adds all rows in order. So the sums
are the same for any number of threads.
"""
from toynn._kernels.base._parallel cimport parallel_for, part_fn

cdef enum:
    COLS = 64


cdef inline void parallel_columns(part_fn part, void* a, Py_ssize_t C) noexcept nogil:
    """Compute all blocks of COLS columns, of C in all, on a.n_threads threads."""
    parallel_for(part, a, (C + COLS - 1) // COLS)


cdef inline void begin_sums(
    float* acc, const float* sums, Py_ssize_t width, bint accumulate
) noexcept nogil:
    """Begin the sums of width columns (<= COLS): at 0, or at their old values to accumulate."""
    cdef Py_ssize_t c
    for c in range(width):
        acc[c] = sums[c] if accumulate and sums != NULL else 0


cdef inline void end_sums(float* sums, const float* acc, Py_ssize_t width) noexcept nogil:
    """Store the sums of width columns unless sums is NULL."""
    cdef Py_ssize_t c
    if sums != NULL:
        for c in range(width):
            sums[c] = acc[c]
