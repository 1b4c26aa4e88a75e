"""Class token and positions: how the patches of a picture become a sequence.

    y[b,0,c] = cls[c] + pos[0,c]
    y[b,t,c] = x[b,t-1,c] + pos[t,c]           t = 1..T-1

    dx[b,t-1,c] = dy[b,t,c]                    t = 1..T-1
    dpos[t,c]   = sum_b dy[b,t,c]              dcls[c] = sum_b dy[b,0,c]

B pictures, T - 1 patches each, C channels. float32, C-contiguous; outputs never alias inputs.
Nothing is saved. dx is overwritten; dcls and dpos are overwritten, or added to if accumulate is
set. Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, arXiv:2010.11929, equation 1.
"""
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport at1, at2
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline void _sum(float* y, const float* a, const float* b, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(C):
        y[c] = a[c] + b[c]


cdef inline void _sum_over_pictures(
    float* d, const float* dy_t, Py_ssize_t B, Py_ssize_t T, Py_ssize_t C, bint accumulate
) noexcept nogil:
    """d[:] (+)= the rows t of all pictures; dy_t points to that of the first one."""
    cdef Py_ssize_t b
    if not accumulate:
        memset(d, 0, C * sizeof(float))
    for b in range(B):
        _sum(d, d, dy_t + b * T * C, C)


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const float* cls = <const float*>a.t[2]
    cdef const float* pos = <const float*>a.t[3]
    cdef Py_ssize_t row, b, t, T = a.n[1], C = a.n[2]
    for row in range(first, last):
        b, t = row // T, row % T
        # Before the patches of picture b stand b class tokens, and its own.
        _sum(y + row * C, x + (row - b - 1) * C if t else cls, pos + t * C, C)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], T = a.n[1]
    parallel_for(_forward_rows, a, B * T)


cdef void _backward_pictures(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[3]
    cdef Py_ssize_t b, T = a.n[1], C = a.n[2]
    for b in range(first, last):
        memcpy(dx + b * (T - 1) * C, dy + (b * T + 1) * C, (T - 1) * C * sizeof(float))


cdef void _backward_tokens(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dcls = <float*>a.t[1]
    cdef float* dpos = <float*>a.t[2]
    cdef const float* dy = <const float*>a.t[3]
    cdef Py_ssize_t t, B = a.n[0], T = a.n[1], C = a.n[2]
    for t in range(first, last):
        if dpos != NULL:
            _sum_over_pictures(dpos + t * C, dy + t * C, B, T, C, a.accumulate)
        if t == 0 and dcls != NULL:
            _sum_over_pictures(dcls, dy, B, T, C, a.accumulate)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t B = a.n[0], T = a.n[1], C = a.n[2]
    if C == 0:
        return
    if T > 1:
        parallel_for(_backward_pictures, a, B)
    parallel_for(_backward_tokens, a, T)


def forward(
    float[:, ::1] y, const float[:, ::1] x, const float[::1] cls, const float[:, ::1] pos,
    int n_threads=1,
):
    """Overwrite y (B*T, C) with cls (C,) and the patches x (B*(T-1), C), plus pos (T, C)."""
    cdef KernelArgs a
    cdef Py_ssize_t T = pos.shape[0], C = pos.shape[1]
    cdef Py_ssize_t B = y.shape[0] // max(T, 1)
    check(
        "class_token.forward", f"pos ({T}, {C}), {B} pictures", n_threads,
        y=(y, (B * T, C)), x=(x, (B * (T - 1), C)), cls=(cls, (C,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(y), at2(x), at1(cls), at2(pos)
    a.n[0], a.n[1], a.n[2] = B, T, C
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dx, float[::1] dcls, float[:, ::1] dpos, const float[:, ::1] dy,
    bint accumulate=False, int n_threads=1,
):
    """Overwrite dx (B*(T-1), C), and overwrite dcls (C,) and dpos (T, C) or add to them.

    dy is (B*T, C).
    """
    cdef KernelArgs a
    cdef Py_ssize_t T = dpos.shape[0], C = dpos.shape[1]
    cdef Py_ssize_t B = dy.shape[0] // max(T, 1)
    check(
        "class_token.backward", f"dpos ({T}, {C}), {B} pictures", n_threads,
        dx=(dx, (B * (T - 1), C)), dcls=(dcls, (C,)), dy=(dy, (B * T, C)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dx), at1(dcls), at2(dpos), at2(dy)
    a.n[0], a.n[1], a.n[2] = B, T, C
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y x cls pos", sizes="B T C"),
    "backward": entry(_backward, "dx dcls? dpos? dy", sizes="B T C"),
}
