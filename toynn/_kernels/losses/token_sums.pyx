"""Sums of token losses: over the prompt of each sequence, and over its completion.

    forward   sums[s,0] = sum of losses[bounds[2s]   .. bounds[2s+1]-1]      the prompt's
              sums[s,1] = sum of losses[bounds[2s+1] .. bounds[2s+2]-1]      the completion's
    backward  dlosses[n] = dsums[s,part] of the part that holds row n; 0 if no part holds it

losses (N,) are the rows of several sequences, one after the other. bounds (2S+1,), int32, rise from
0 or more to at most N. Equal bounds are a part without rows, whose sum is 0. float32, summed in
double; all outputs are overwritten. One thread: each loss is added once.
Source: none; this is a definition. The log probability of a completion is minus its sum.
"""
from libc.string cimport memset

from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import bounds_rise


cdef inline void forward_once(
    float* sums, const float* losses, const int* bounds, Py_ssize_t S, Py_ssize_t N
) noexcept nogil:
    cdef Py_ssize_t k, n
    cdef double total
    for k in range(2 * S):
        total = 0
        for n in range(bounds[k], min(bounds[k + 1], N)):
            total += losses[n]
        sums[k] = <float>total


cdef inline void backward_once(
    float* dlosses, const float* dsums, const int* bounds, Py_ssize_t S, Py_ssize_t N
) noexcept nogil:
    cdef Py_ssize_t k, n
    if N:
        memset(dlosses, 0, N * sizeof(float))
    for k in range(2 * S):
        for n in range(bounds[k], min(bounds[k + 1], N)):
            dlosses[n] = dsums[k]


forward = entry("once: sums[S 2] <- losses[N] i32 bounds[2*S+1]", bounds_rise)
backward = entry("once: dlosses[N] <- dsums[S 2] i32 bounds[2*S+1]", bounds_rise)
