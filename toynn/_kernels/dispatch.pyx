"""Dispatch: copies of rows, sorted by expert, and back: sums of the copies; weights of the copies.

    forward            y[r,c]    = x[n,c]                      combine is its gradient
    combine            y[n,c]    = sum_j x[slots[n,j],c]       forward is its gradient
    weigh              y[r,c]    = w[n,j] x[r,c]
    weigh_backward     dx[r,c]   = w[n,j] dy[r,c]
                       dw[n,j]   = sum_c dy[r,c] x[r,c]        r = slots[n,j]

N rows of C channels, K copies of each; slots (N,K) of int32 says where a copy lies among the N K
sorted ones (expert_rows.pyx), each in a slot of its own. float32, C-contiguous; all outputs are
overwritten, j ascends in sums. In place: y of weigh may be x, dx may be dy.
The Python doors refuse a slot outside 0..N K - 1.
Source: Lepikhin et al. 2020, GShard, arXiv:2006.16668, section 3.2.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport at2, dot_
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const int* slots = <const int*>a.t[2]
    cdef Py_ssize_t n, j, K = a.n[1], C = a.n[2]
    for n in range(first, last):
        for j in range(K):
            memcpy(y + slots[n * K + j] * C, x + n * C, C * sizeof(float))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[2]
    if C:
        parallel_for(_forward_rows, a, N)


cdef void _combine_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const int* slots = <const int*>a.t[2]
    cdef Py_ssize_t n, j, c, K = a.n[1], C = a.n[2]
    cdef float* y_n
    cdef const float* x_r
    for n in range(first, last):
        y_n = y + n * C
        memset(y_n, 0, C * sizeof(float))
        for j in range(K):
            x_r = x + slots[n * K + j] * C
            for c in range(C):
                y_n[c] += x_r[c]


cdef void _combine(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], C = a.n[2]
    if C:
        parallel_for(_combine_rows, a, N)


cdef void _weigh_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const float* w = <const float*>a.t[2]
    cdef const int* slots = <const int*>a.t[3]
    cdef Py_ssize_t i, at, c, K = a.n[1], C = a.n[2]
    for i in range(first * K, last * K):
        at = slots[i] * C
        for c in range(C):
            y[at + c] = w[i] * x[at + c]


cdef void _weigh(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_weigh_rows, a, N)


cdef void _weigh_backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef float* dw = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* x = <const float*>a.t[3]
    cdef const float* w = <const float*>a.t[4]
    cdef const int* slots = <const int*>a.t[5]
    cdef Py_ssize_t i, at, c, K = a.n[1], C = a.n[2]
    for i in range(first * K, last * K):
        at = slots[i] * C
        dw[i] = dot_(dy + at, x + at, C)
        for c in range(C):
            dx[at + c] = w[i] * dy[at + c]


cdef void _weigh_backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_weigh_backward_rows, a, N)


cdef void* _slots_at(where, const int[:, ::1] slots) except? NULL:
    """The address of the slots, all of which are within 0..N K - 1."""
    cdef Py_ssize_t n, j, M = slots.shape[0] * slots.shape[1]
    for n in range(slots.shape[0] if slots.shape[1] else 0):
        for j in range(slots.shape[1]):
            if not 0 <= slots[n, j] < M:
                raise ValueError(f"{where}: row {n}: slot {slots[n, j]} is outside 0..{M - 1}")
    return <void*>&slots[0, 0] if M else NULL


def forward(float[:, ::1] y, const float[:, ::1] x, const int[:, ::1] slots, int n_threads=1):
    """Overwrite y (N K,C) from x (N,C) and slots (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = slots.shape[0], K = slots.shape[1], C = x.shape[1]
    check(
        "dispatch.forward", f"slots ({N}, {K}), {C} channels", n_threads, y=(y, (N * K, C)),
        x=(x, (N, C)),
    )
    a.t[0], a.t[1], a.t[2] = at2(y), at2(x), _slots_at("dispatch.forward", slots)
    a.n[0], a.n[1], a.n[2] = N, K, C
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def combine(float[:, ::1] y, const float[:, ::1] x, const int[:, ::1] slots, int n_threads=1):
    """Overwrite y (N,C) from x (N K,C) and slots (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = slots.shape[0], K = slots.shape[1], C = x.shape[1]
    check(
        "dispatch.combine", f"slots ({N}, {K}), {C} channels", n_threads, y=(y, (N, C)),
        x=(x, (N * K, C)),
    )
    a.t[0], a.t[1], a.t[2] = at2(y), at2(x), _slots_at("dispatch.combine", slots)
    a.n[0], a.n[1], a.n[2] = N, K, C
    a.n_threads = n_threads
    with nogil:
        _combine(&a)


def weigh(
    float[:, ::1] y, const float[:, ::1] x, const float[:, ::1] w, const int[:, ::1] slots,
    int n_threads=1,
):
    """Overwrite y (N K,C) from x (N K,C), w and slots (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = slots.shape[0], K = slots.shape[1], C = x.shape[1]
    check(
        "dispatch.weigh", f"slots ({N}, {K}), {C} channels", n_threads, y=(y, (N * K, C)),
        x=(x, (N * K, C)), w=(w, (N, K)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(y), at2(x), at2(w), _slots_at("dispatch.weigh", slots)
    a.n[0], a.n[1], a.n[2] = N, K, C
    a.n_threads = n_threads
    with nogil:
        _weigh(&a)


def weigh_backward(
    float[:, ::1] dx, float[:, ::1] dw, const float[:, ::1] dy, const float[:, ::1] x,
    const float[:, ::1] w, const int[:, ::1] slots, int n_threads=1,
):
    """Overwrite dx (N K,C) and dw (N,K) from dy and x (N K,C), w and slots (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = slots.shape[0], K = slots.shape[1], C = x.shape[1]
    check(
        "dispatch.weigh_backward", f"slots ({N}, {K}), {C} channels", n_threads,
        dx=(dx, (N * K, C)), dw=(dw, (N, K)), dy=(dy, (N * K, C)), x=(x, (N * K, C)),
        w=(w, (N, K)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at2(dx), at2(dw), at2(dy), at2(x), at2(w)
    a.t[5] = _slots_at("dispatch.weigh_backward", slots)
    a.n[0], a.n[1], a.n[2] = N, K, C
    a.n_threads = n_threads
    with nogil:
        _weigh_backward(&a)


entries = {
    "forward": entry(_forward, "y x slots", sizes="N K C"),
    "combine": entry(_combine, "y x slots", sizes="N K C"),
    "weigh": entry(_weigh, "y x w slots", sizes="N K C"),
    "weigh_backward": entry(_weigh_backward, "dx dw dy x w slots", sizes="N K C"),
}
