"""Dropout: some elements become zero, the others grow, so that the mean stays.

    y[i]  = x[i] m[i] / (1 - p)           m[i] = [h[i] >= p 2^32]
    dx[i] = dy[i] m[i] / (1 - p)          the same kernel, with dy for x

    h[i]  = 32 bits of splitmix64(key + 16 (i // 32) + i % 16): the low ones where i % 32 < 16,
            else the high ones
    key   = splitmix64 over seed, step, site

The mask is not stored: whoever asks for the same seed, step, site and element gets the same bit.
control: int32 (step, active); where active is 0, y = x. p in [0, 1).
n elements. float32, C-contiguous. In place: y may be x. y is overwritten. NaN stays NaN, dropped
or not. The mask depends on neither threads nor ISA level.
Source: Srivastava et al. 2014, Dropout, JMLR 15, section 10 (scaled in training); Salmon et al.
2011, Parallel random numbers: as easy as 1, 2, 3, SC11 (counters instead of states).
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport LANES, at1, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._hash cimport hashed, splitmix
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    GROUP = 32  # elements that share LANES hashes, two a hash: so a vector of hashes serves two

cdef struct Mask:
    uint64_t key
    uint32_t least  # the smallest hash of an element that is kept
    float scale     # what those are multiplied by


cdef Mask _mask(KernelArgs* a) noexcept nogil:
    cdef const int* control = <const int*>a.t[2]
    cdef Py_ssize_t seed = a.n[1], site = a.n[2]
    cdef double p = a.f[0] if control[1] else 0
    return Mask(
        hashed(seed, <uint32_t>control[0], site), <uint32_t>(p * 4294967296.0),
        <float>(1 / (1 - p)),
    )


@cython.overflowcheck(False)
cdef inline void _group(float* y, const float* x, const Mask* m, uint64_t first) noexcept nogil:
    cdef uint32_t low[LANES]
    cdef uint32_t high[LANES]
    cdef uint64_t h, start = m.key + first
    cdef uint32_t least = m.least
    cdef float scale = m.scale
    cdef int j
    for j in range(LANES):
        h = splitmix(start + j)
        low[j], high[j] = <uint32_t>h, <uint32_t>(h >> 32)
    for j in range(LANES):
        y[j] = x[j] * (scale if low[j] >= least else 0)
    for j in range(LANES):
        y[LANES + j] = x[LANES + j] * (scale if high[j] >= least else 0)


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Elements from the first of a group on; those of the last group by way of a whole one."""
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Mask m = _mask(a)
    cdef float few[GROUP]
    cdef Py_ssize_t g, i, rest = (last - first) % GROUP
    for g in range((last - first) // GROUP):
        i = first + g * GROUP
        _group(y + i, x + i, &m, i // 2)
    if rest:
        memset(few, 0, sizeof(few))
        memcpy(few, x + last - rest, rest * sizeof(float))
        _group(few, few, &m, (last - rest) // 2)
        memcpy(y + last - rest, few, rest * sizeof(float))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


def forward(
    float[::1] y, const float[::1] x, const int[::1] control, float p, seed=0, site=0,
    int n_threads=1,
):
    """Overwrite y (n,) from x (n,) and control (2,); seed and site are integers mod 2^63."""
    cdef KernelArgs a
    cdef Py_ssize_t n = x.shape[0]
    check("dropout.forward", f"x ({n},)", n_threads, y=(y, (n,)), control=(control, (2,)))
    if not 0 <= p < 1:
        raise ValueError(f"dropout.forward: needs p in [0, 1) as float32; got {p}")
    a.t[0], a.t[1], a.t[2] = at1(y), at1(x), ids1(control)
    a.n[0], a.n[1], a.n[2] = n, seed & 0x7FFFFFFFFFFFFFFF, site & 0x7FFFFFFFFFFFFFFF
    a.f[0] = p
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


entries = {
    "forward": entry(_forward, "y x control", sizes="n seed site", options="p"),
}
