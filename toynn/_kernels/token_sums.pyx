"""Sums of token losses: over the prompt of each sequence, and over its completion.

    forward   sums[s,0] = sum of losses[bounds[2s]   .. bounds[2s+1]-1]      the prompt's
              sums[s,1] = sum of losses[bounds[2s+1] .. bounds[2s+2]-1]      the completion's
    backward  dlosses[n] = dsums[s,part] of the part that row n lies in; 0 where it lies in none

losses (N,) are rows of several sequences, one behind another; bounds (2S+1,) of int32 rise from 0
or more to at most N. Equal bounds are a part without rows, whose sum is 0. float32, sums inside in
double; all outputs are overwritten. One thread: each loss is added once.
Source: a definition; the log probability of a completion is minus its sum.
"""
from libc.string cimport memset

from toynn._kernels._common cimport at1, at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* sums = <float*>a.t[0]
    cdef const float* losses = <const float*>a.t[1]
    cdef const int* bounds = <const int*>a.t[2]
    cdef Py_ssize_t k, n, N = a.n[0], S = a.n[1]
    cdef double total
    for k in range(2 * S):
        total = 0
        for n in range(bounds[k], min(bounds[k + 1], N)):
            total += losses[n]
        sums[k] = <float>total


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dlosses = <float*>a.t[0]
    cdef const float* dsums = <const float*>a.t[1]
    cdef const int* bounds = <const int*>a.t[2]
    cdef Py_ssize_t k, n, N = a.n[0], S = a.n[1]
    if N:
        memset(dlosses, 0, N * sizeof(float))
    for k in range(2 * S):
        for n in range(bounds[k], min(bounds[k + 1], N)):
            dlosses[n] = dsums[k]


def _check_bounds(where, const int[::1] bounds, Py_ssize_t N):
    """Raise ValueError unless the bounds rise from at least 0 to at most N."""
    cdef Py_ssize_t k, before = 0
    for k in range(bounds.shape[0]):
        if not before <= bounds[k] <= N:
            raise ValueError(f"{where}: bounds[{k}] must be {before} to {N}; got {bounds[k]}")
        before = bounds[k]


def forward(float[:, ::1] sums, const float[::1] losses, const int[::1] bounds, int n_threads=1):
    """Overwrite sums (S,2) from losses (N,) and bounds (2S+1,)."""
    cdef KernelArgs a
    cdef str where = "token_sums.forward"
    cdef Py_ssize_t N = losses.shape[0], S = bounds.shape[0] // 2
    check(
        where, f"bounds ({bounds.shape[0]},)", n_threads, sums=(sums, (S, 2)),
        bounds=(bounds, (2 * S + 1,)),
    )
    _check_bounds(where, bounds, N)
    a.t[0], a.t[1], a.t[2] = at2(sums), at1(losses), ids1(bounds)
    a.n[0], a.n[1] = N, S
    with nogil:
        _forward(&a)


def backward(
    float[::1] dlosses, const float[:, ::1] dsums, const int[::1] bounds, int n_threads=1
):
    """Overwrite dlosses (N,) from dsums (S,2) and bounds (2S+1,)."""
    cdef KernelArgs a
    cdef str where = "token_sums.backward"
    cdef Py_ssize_t N = dlosses.shape[0], S = bounds.shape[0] // 2
    check(
        where, f"bounds ({bounds.shape[0]},)", n_threads, dsums=(dsums, (S, 2)),
        bounds=(bounds, (2 * S + 1,)),
    )
    _check_bounds(where, bounds, N)
    a.t[0], a.t[1], a.t[2] = at1(dlosses), at2(dsums), ids1(bounds)
    a.n[0], a.n[1] = N, S
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "sums losses bounds", sizes="N S"),
    "backward": entry(_backward, "dlosses dsums bounds", sizes="N S"),
}
