"""The exponentials of a row of logits, and their sum, for the two cross-entropy kernels."""
from libc.string cimport memcpy

from toynn._kernels.base._common cimport exp_, sum_

cdef enum:
    BLOCK = 1024    # logits at a time: 4 KiB, which stay in the L1 cache between two loops


cdef inline double exp_sum(float* kept, const float* x, float top, Py_ssize_t V) noexcept nogil:
    """sum_v e^(x[v] - top); top is the row's maximum. The terms go to kept unless that is NULL.

    So a row is read twice: for its maximum, then here, from the L2 cache. A single pass that
    rescales the sum as the maximum grows was no faster (256 rows of 50257 at avx512, 1 and 2
    threads). kept may be x; the sum's bits do not depend on it.
    """
    cdef float terms[BLOCK]
    cdef double total = 0
    cdef Py_ssize_t v, b, size
    for b in range((V + BLOCK - 1) // BLOCK):
        size = min(BLOCK, V - b * BLOCK)
        for v in range(size):
            terms[v] = exp_(x[b * BLOCK + v] - top)
        total += sum_(terms, size)
        if kept != NULL:
            memcpy(kept + b * BLOCK, terms, size * sizeof(float))
    return total
