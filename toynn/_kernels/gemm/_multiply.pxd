"""A product, computed in the way that _product.pxd chose."""
from libc.string cimport memset

from toynn._kernels.gemm._direct cimport multiply_gemv, multiply_skinny, multiply_small
from toynn._kernels.gemm._loops cimport loops_floats, multiply_in_loops, multiply_with_resident
from toynn._kernels.gemm._product cimport (
    GEMV, GEMV_INT8, PANELS, PANELS_RESIDENT, SKINNY, SMALL, Product, is_packed,
)


cdef inline Py_ssize_t scratch_floats(const Product* p, int n_threads) noexcept nogil:
    """Floats of scratch memory that a product needs on up to n_threads threads."""
    return loops_floats(p, n_threads) if is_packed(p) else 0


cdef inline void multiply_matrices(const Product* p, void* workspace, int n_threads) noexcept nogil:
    if p.a.size == 0 or p.b.size == 0:
        return
    if p.K == 0 and not p.add:
        memset(p.c, 0, p.a.size * p.b.size * sizeof(float))
    if p.way == GEMV_INT8 or p.way == GEMV:
        multiply_gemv(p, workspace, n_threads)
    elif p.way == SKINNY:
        multiply_skinny(p, n_threads)
    elif p.way == SMALL:
        multiply_small(p)
    elif p.way == PANELS:
        multiply_in_loops(p, workspace, n_threads)
    elif p.way == PANELS_RESIDENT:
        multiply_with_resident(p, workspace, n_threads)
