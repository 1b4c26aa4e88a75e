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

from toynn._kernels.base._common cimport dot_
from toynn._kernels.base.entry cimport entry


cdef inline void forward_row(
    float* y, const float* x, const int* slots, Py_ssize_t K, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(K):
        memcpy(y + slots[j] * C, x, C * sizeof(float))


cdef inline void combine_row(
    float* y, const float* x, const int* slots, Py_ssize_t K, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t j, c
    memset(y, 0, C * sizeof(float))
    for j in range(K):
        for c in range(C):
            y[c] += x[slots[j] * C + c]


cdef inline void weigh_row(
    float* y, const float* x, const float* w, const int* slots, Py_ssize_t K, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t j, r, c
    for j in range(K):
        r = slots[j]
        for c in range(C):
            y[r * C + c] = w[j] * x[r * C + c]


cdef inline void weigh_backward_row(
    float* dx, float* dw, const float* dy, const float* x, const float* w, const int* slots,
    Py_ssize_t K, Py_ssize_t C,
) noexcept nogil:
    cdef Py_ssize_t j, r, c
    for j in range(K):
        r = slots[j]
        dw[j] = dot_(dy + r * C, x + r * C, C)
        for c in range(C):
            dx[r * C + c] = w[j] * dy[r * C + c]


forward = entry("rows N: y[N*K C] <- x[N C] i32 slots[N K]<N*K")
combine = entry("rows N: y[N C] <- x[N*K C] i32 slots[N K]<N*K")
weigh = entry("rows N: y[N*K C]=x <- x[N*K C] w[N K] i32 slots[N K]<N*K")
weigh_backward = entry(
    "rows N: dx[N*K C]=dy dw[N K] <- dy[N*K C] x[N*K C] w[N K] i32 slots[N K]<N*K"
)
