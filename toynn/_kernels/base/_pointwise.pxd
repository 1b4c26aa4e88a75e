"""How the elements of a pointwise op are dealt to threads, and how inputs are fetched ahead."""
from toynn._kernels.base._parallel cimport deal, part_fn
from toynn._kernels.base.abi cimport KernelArgs

cdef extern from "compiler.h" nogil:
    void prefetch "tn_prefetch" (const void* x, Py_ssize_t nbytes) noexcept

cdef enum:
    BLOCK = 4096   # elements per task: 16 KiB of each array
    NEAR = 16384   # elements that are in a near cache: nothing is gained by fetching them
    STRETCH = 128  # elements for which a loop is called: more at once would wait for each other
    AHEAD = 512    # numbers ahead that are fetched, at least
    MOST = 256     # numbers that a row fetches at once: the CPU foresees what follows them

cdef struct Elements:
    part_fn part
    void* a


cdef inline void ahead(const float* x, Py_ssize_t n) noexcept nogil:
    """Fetch what is read after these n numbers. By itself a CPU stops at the end of each page."""
    prefetch(x + max(n, AHEAD), 4 * min(n, MOST))


cdef inline void _stretches(void* elements, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Elements* e = <Elements*>elements
    while first < last:
        e.part(e.a, first, min(first + STRETCH, last))
        first += STRETCH


cdef inline void parallel_elements(part_fn part, void* a, Py_ssize_t n) noexcept nogil:
    """Compute elements 0 .. n - 1 on the kernel's n_threads threads, in ranges of whole blocks."""
    cdef Elements e = Elements(part, a)
    cdef int n_threads = (<KernelArgs*>a).n_threads
    if n <= NEAR:
        deal(part, a, n, n_threads, BLOCK)
    else:
        deal(_stretches, &e, n, n_threads, BLOCK)
