"""Dispatch: copy each row to its experts, weigh the copies, and add them up again.

    forward            y[r,c]    = x[n,c]                      combine is its gradient
    combine            y[n,c]    = sum_j x[slots[n,j],c]       forward is its gradient
    weigh              y[r,c]    = w[n,j] x[r,c]
    weigh_backward     dx[r,c]   = w[n,j] dy[r,c]
                       dw[n,j]   = sum_c dy[r,c] x[r,c]        r = slots[n,j]

N rows of C channels, K copies of each. slots (N,K), int32, is the place of each copy among all N K
copies, sorted by expert (expert_rows.pyx). No two copies share a slot. float32, C-contiguous; all
outputs are overwritten; sums add in order of j. In place: y of weigh may be x, dx may be dy. The
Python calls refuse a slot outside 0..N K - 1.
Source: Lepikhin et al. 2020, GShard, arXiv:2006.16668, section 3.2.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport dot_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.dispatch cimport Combine, Forward, Weigh, WeighBackward
from toynn._kernels.entry cimport entry


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, j
    for n in range(first, last):
        for j in range(a.K):
            memcpy(a.y + a.slots[n * a.K + j] * a.C, a.x + n * a.C, a.C * sizeof(float))


cdef void _forward(Forward* a) noexcept nogil:
    if a.C:
        parallel_for(<part_fn>_forward_rows, a, a.N)


cdef void _combine_rows(Combine* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, j, c
    cdef float* y_n
    cdef const float* x_r
    for n in range(first, last):
        y_n = a.y + n * a.C
        memset(y_n, 0, a.C * sizeof(float))
        for j in range(a.K):
            x_r = a.x + a.slots[n * a.K + j] * a.C
            for c in range(a.C):
                y_n[c] += x_r[c]


cdef void _combine(Combine* a) noexcept nogil:
    if a.C:
        parallel_for(<part_fn>_combine_rows, a, a.N)


cdef void _weigh_rows(Weigh* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i, at, c
    for i in range(first * a.K, last * a.K):
        at = a.slots[i] * a.C
        for c in range(a.C):
            a.y[at + c] = a.w[i] * a.x[at + c]


cdef void _weigh(Weigh* a) noexcept nogil:
    parallel_for(<part_fn>_weigh_rows, a, a.N)


cdef void _weigh_backward_rows(WeighBackward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i, at, c
    for i in range(first * a.K, last * a.K):
        at = a.slots[i] * a.C
        a.dw[i] = dot_(a.dy + at, a.x + at, a.C)
        for c in range(a.C):
            a.dx[at + c] = a.w[i] * a.dy[at + c]


cdef void _weigh_backward(WeighBackward* a) noexcept nogil:
    parallel_for(<part_fn>_weigh_backward_rows, a, a.N)


forward = entry(<kernel_fn>_forward, "y[N*K C] <- x[N C] i32 slots[N K]<N*K")
combine = entry(<kernel_fn>_combine, "y[N C] <- x[N*K C] i32 slots[N K]<N*K")
weigh = entry(<kernel_fn>_weigh, "y[N*K C]=x <- x[N*K C] w[N K] i32 slots[N K]<N*K")
weigh_backward = entry(
    <kernel_fn>_weigh_backward,
    "dx[N*K C]=dy dw[N K] "
    "<- dy[N*K C] x[N*K C] w[N K] i32 slots[N K]<N*K",
)
