"""The norm of all gradients, and from it the one factor that AdamW applies to them.

    norm  = weight_inverse sqrt(sum_i g[i]^2)
    scale = weight_inverse min(1, max_norm / (norm + 1e-6))

control = [max_norm, weight_inverse]: max_norm <= 0 means no clipping (the min is 1), weight_inverse
is 1 over what the gradients were summed over. scale is NaN where norm is not finite: AdamW then
writes nothing. n elements, float32; outputs never alias inputs. Each block of 16384 elements is
summed in 64 partial sums, the blocks in double: the same for any thread count.
Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
"""
from libc.math cimport NAN, isfinite, sqrt
from libc.stdlib cimport free, malloc

from toynn._kernels._common cimport LANES, at1, sum_lanes
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 16384  # elements per partial sum
    SUMS = 4 * LANES  # in a block: an addition takes as long as four that need not wait for it


cdef inline float _sum_squares(const float* g, Py_ssize_t n) noexcept nogil:
    cdef float acc[SUMS]
    cdef float total = 0
    cdef Py_ssize_t i, b, whole = n - n % SUMS
    cdef int k
    for k in range(SUMS):
        acc[k] = 0
    for b in range(n // SUMS):
        for k in range(SUMS):
            acc[k] += g[b * SUMS + k] * g[b * SUMS + k]
    for i in range(whole, n):
        acc[i - whole] += g[i] * g[i]
    for k in range(SUMS // LANES):
        total += sum_lanes(acc + k * LANES)
    return total


cdef void _sum_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* partial = <float*>a.workspace
    cdef const float* g = <const float*>a.t[2]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        partial[b] = _sum_squares(g + i, min(BLOCK, n - i))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* norm = <float*>a.t[0]
    cdef float* scale = <float*>a.t[1]
    cdef const float* partial = <const float*>a.workspace
    cdef const float* control = <const float*>a.t[3]
    cdef Py_ssize_t b, n = a.n[0], blocks = (n + BLOCK - 1) // BLOCK
    cdef float max_norm = control[0], weight_inverse = control[1], clip = 1
    cdef double total = 0
    parallel_for(_sum_blocks, a, blocks)
    for b in range(blocks):
        total += partial[b]
    norm[0] = weight_inverse * sqrt(total)
    if not max_norm <= 0:  # a NaN too: it must not read as no clipping
        clip = max_norm / (norm[0] + <float>1e-6)
        clip = 1 if clip > 1 else clip
    scale[0] = weight_inverse * clip if isfinite(norm[0]) else NAN


def workspace(str name, Py_ssize_t n, int n_threads=1):
    """Bytes of scratch memory that an entry needs: a sum for each block."""
    return (n + BLOCK - 1) // BLOCK * sizeof(float)


def forward(
    float[::1] norm, float[::1] scale, const float[::1] g, const float[::1] control,
    int n_threads=1,
):
    """Overwrite norm (1,) and scale (1,) from g (n,) and control (2,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = g.shape[0]
    check(
        "grad_norm.forward", f"g ({n},)", n_threads, norm=(norm, (1,)), scale=(scale, (1,)),
        control=(control, (2,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at1(norm), at1(scale), at1(g), at1(control)
    a.n[0] = n
    a.n_threads = n_threads
    a.workspace = malloc(workspace("forward", max(n, 1)))
    if a.workspace == NULL:
        raise MemoryError(f"grad_norm.forward: no scratch memory for {n} elements")
    with nogil:
        _forward(&a)
    free(a.workspace)


entries = {
    "forward": entry(_forward, "norm scale g control", sizes="n"),
}
