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

from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.class_token cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef inline void _sum(float* y, const float* a, const float* b, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(C):
        y[c] = a[c] + b[c]


cdef inline void _sum_over_pictures(
    float* d, const float* dy_t, Py_ssize_t B, Py_ssize_t T, Py_ssize_t C, bint accumulate
) noexcept nogil:
    """d[:] (+)= row t of all pictures; dy_t points to row t of the first picture."""
    cdef Py_ssize_t b
    if not accumulate:
        memset(d, 0, C * sizeof(float))
    for b in range(B):
        _sum(d, d, dy_t + b * T * C, C)


cdef void _forward_rows(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t row, b, t
    for row in range(first, last):
        b, t = row // a.T, row % a.T
        # x has no class tokens: up to the patches of picture b, y has b + 1 rows more.
        _sum(a.y + row * a.C, a.x + (row - b - 1) * a.C if t else a.cls, a.pos + t * a.C, a.C)


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_rows, a, a.B * a.T)


cdef void _backward_pictures(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, patches = (a.T - 1) * a.C
    for b in range(first, last):
        memcpy(a.dx + b * patches, a.dy + (b * a.T + 1) * a.C, patches * sizeof(float))


cdef void _backward_tokens(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t t
    for t in range(first, last):
        if a.dpos != NULL:
            _sum_over_pictures(a.dpos + t * a.C, a.dy + t * a.C, a.B, a.T, a.C, a.accumulate)
        if t == 0 and a.dcls != NULL:
            _sum_over_pictures(a.dcls, a.dy, a.B, a.T, a.C, a.accumulate)


cdef void _backward(Backward* a) noexcept nogil:
    if a.C == 0:
        return
    if a.T > 1:
        parallel_for(<part_fn>_backward_pictures, a, a.B)
    parallel_for(<part_fn>_backward_tokens, a, a.T)


forward = entry(<kernel_fn>_forward, "y[B*T C] <- x[B*(T-1) C] cls[C] pos[T C]")
backward = entry(<kernel_fn>_backward, "dx[B*(T-1) C] dcls[C]?+ dpos[T C]?+ <- dy[B*T C]")
