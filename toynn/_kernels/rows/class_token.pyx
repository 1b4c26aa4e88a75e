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

from toynn._kernels.base.entry cimport entry


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


cdef inline void forward_row(
    float* y, const float* x, const float* cls, const float* pos, Py_ssize_t at, Py_ssize_t T,
    Py_ssize_t C,
) noexcept nogil:
    cdef Py_ssize_t b = at // T, t = at % T
    # x has no class tokens: up to the patches of picture b, y has b + 1 rows more.
    _sum(y, x + (at - b - 1) * C if t else cls, pos + t * C, C)


cdef inline void backward_picture(
    float* dx, const float* dy, Py_ssize_t at, Py_ssize_t T, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t patches = (T - 1) * C
    memcpy(dx + at * patches, dy + (at * T + 1) * C, patches * sizeof(float))


cdef inline void backward_token(
    float* dpos, float* dcls, const float* dy, Py_ssize_t at, Py_ssize_t B, Py_ssize_t T,
    Py_ssize_t C, bint accumulate,
) noexcept nogil:
    if dpos != NULL:
        _sum_over_pictures(dpos, dy + at * C, B, T, C, accumulate)
    if at == 0 and dcls != NULL:
        _sum_over_pictures(dcls, dy, B, T, C, accumulate)


forward = entry("rows B*T: y[B*T C] <- x[B*(T-1) C] cls[C] pos[T C]")
backward = entry(
    "pictures B, tokens T: dx[B*(T-1) C] dcls[C]?+ dpos[T C]?+ <- dy[B*T C]"
)
