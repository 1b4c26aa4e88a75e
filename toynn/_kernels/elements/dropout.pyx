"""Dropout: some elements become zero, the others grow, so that the mean stays the same.

    y[i]  = x[i] m[i] / (1 - p)           m[i] = [h[i] >= p 2^32]
    dx[i] = dy[i] m[i] / (1 - p)          the same kernel, with dy for x

    h[i]  = 32 bits of splitmix64(key + 16 (i // 32) + i % 16): the low ones where i % 32 < 16,
            else the high ones
    key   = splitmix64 over seed, step, site

The mask is not stored: the same seed, step, site and element always give the same bit.
control is int32 (step, active); if active is 0, y = x. p is in [0, 1).
n elements. float32, C-contiguous. In place: y may be x. y is overwritten. NaN stays NaN, dropped
or not. The mask depends on neither threads nor ISA level.
Source: Srivastava et al. 2014, Dropout, JMLR 15, section 10 (scaled in training); Salmon et al.
2011, Parallel random numbers: as easy as 1, 2, 3, SC11 (counters instead of states).
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from toynn._kernels.base._common cimport LANES
from toynn._kernels.base._hash cimport hashed, splitmix
from toynn._kernels.base.entry cimport entry

cdef enum:
    GROUP = 32  # elements that LANES hashes of 64 bits serve: 32 bits for each element

cdef struct Mask:
    uint64_t key
    uint32_t least  # the smallest hash of an element that is kept
    float scale     # the factor of kept elements


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


cdef inline void forward_elements(
    float* y, const float* x, const int* control, Py_ssize_t seed, Py_ssize_t site, float p,
    Py_ssize_t at, Py_ssize_t count,
) noexcept nogil:
    """Element ``at`` begins a group. An incomplete last group is padded."""
    cdef double share = p if control[1] else 0
    cdef Mask m = Mask(
        hashed(seed, <uint32_t>control[0], site), <uint32_t>(share * 4294967296.0),
        <float>(1 / (1 - share)),
    )
    cdef float[GROUP] few
    cdef Py_ssize_t g, i, rest = count % GROUP
    for g in range(count // GROUP):
        i = g * GROUP
        _group(y + i, x + i, &m, (at + i) // 2)
    if rest:
        i = count - rest
        memset(few, 0, sizeof(few))
        memcpy(few, x + i, rest * sizeof(float))
        _group(few, few, &m, (at + i) // 2)
        memcpy(y + i, few, rest * sizeof(float))


def _checked(where, arrays, sizes, options):
    if not 0 <= options["p"] < 1:
        raise ValueError(f"{where}: needs p in [0, 1); got {options['p']}")


forward = entry("elements n: y[n]=x <- x[n] i32 control[2] | seed=0 site=0 float p", _checked)
