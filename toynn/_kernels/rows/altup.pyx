"""AltUp: A streams of a token; a block computes one of them, and predicts and corrects the others.

    y[n,i,c] = x[n,i,c] + sum_j w[n,iA+j] x[n,j,c]                       predict
    y[n,i,c] = p[n,i,c] + (1 + w[n,i]) e[n,c] + [i > 0] f[n,c]           correct
               e[n,c] = a[n,c] - p[n,0,c]
    y[n,c]   = z[n,c] s[n]      s = sqrt(q / max(m, floor))              rescale
               q = mean_c x[n,c]^2,  m = mean_c z[n,c]^2

    dx[n,j,c] = dy[n,j,c] + sum_i w[n,iA+j] dy[n,i,c]                    predict_backward
    dw[n,iA+j] = sum_c dy[n,i,c] x[n,j,c]
    da[n,c]   = sum_i (1 + w[n,i]) dy[n,i,c]                             correct_backward
    dp[n,i,c] = dy[n,i,c] - [i = 0] da[n,c]
    dw[n,i]   = sum_c dy[n,i,c] e[n,c],  df[n,c] = sum_{i>0} dy[n,i,c]
    dz[n,c]   = s dy[n,c] - [m > floor] z[n,c] g s / (m C)               rescale_backward
    dx[n,c]   = x[n,c] g / (C sqrt(q max(m, floor)))     g = sum_c dy z

N rows of A streams of C channels. a is what the block makes of p's stream 0; f, which may be
missing, is added to all streams but that. rescale gives z the length of x; where q is 0, dx is 0.
float32, C-contiguous; outputs are overwritten and never alias inputs.
Source: Baykal et al. 2023, arXiv:2301.13310, algorithm 1.
"""
from libc.math cimport sqrtf
from libc.string cimport memcpy, memset

from toynn._kernels.base._common cimport dot_
from toynn._kernels.base.entry cimport entry


cdef inline void _add_times(
    float* y, const float* x, float w, Py_ssize_t C
) noexcept nogil:
    """y += w x."""
    cdef Py_ssize_t c
    for c in range(C):
        y[c] += w * x[c]


cdef inline void predict_row(
    float* y, const float* x, const float* w, Py_ssize_t A, Py_ssize_t C
) noexcept nogil:
    cdef Py_ssize_t i, j
    memcpy(y, x, A * C * sizeof(float))
    for i in range(A):
        for j in range(A):
            _add_times(y + i * C, x + j * C, w[i * A + j], C)


cdef inline void predict_backward_row(
    float* dx, float* dw, const float* dy, const float* x, const float* w, Py_ssize_t A,
    Py_ssize_t C,
) noexcept nogil:
    cdef Py_ssize_t i, j
    if A * C:
        memcpy(dx, dy, A * C * sizeof(float))
    for i in range(A):
        for j in range(A):
            _add_times(dx + j * C, dy + i * C, w[i * A + j], C)
            dw[i * A + j] = dot_(dy + i * C, x + j * C, C)


cdef inline void correct_row(
    float* y, const float* p, const float* a, const float* w, const float* f, Py_ssize_t A,
    Py_ssize_t C,
) noexcept nogil:
    cdef Py_ssize_t i, c
    cdef float w_i
    for i in range(A):
        w_i = 1 + w[i]
        for c in range(C):
            y[i * C + c] = p[i * C + c] + w_i * (a[c] - p[c])
        if i > 0 and f != NULL:
            _add_times(y + i * C, f, 1, C)


cdef inline void correct_backward_row(
    float* dp, float* da, float* dw, float* df, const float* dy, const float* p, const float* a,
    const float* w, Py_ssize_t A, Py_ssize_t C,
) noexcept nogil:
    cdef Py_ssize_t i, c
    for c in range(C if A else 0):
        da[c] = a[c] - p[c]
    for i in range(A):
        dw[i] = dot_(dy + i * C, da, C)
    if C:
        memset(da, 0, C * sizeof(float))
    for i in range(A):
        _add_times(da, dy + i * C, 1 + w[i], C)
    if A * C:
        memcpy(dp, dy, A * C * sizeof(float))
        _add_times(dp, da, -1, C)
    if df != NULL and C:
        memset(df, 0, C * sizeof(float))
        for i in range(1, A):
            _add_times(df, dy + i * C, 1, C)


cdef inline void rescale_row(
    float* y, const float* z, const float* x, Py_ssize_t C, float floor
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float m = dot_(z, z, C) / C
    cdef float s = sqrtf(dot_(x, x, C) / C / (floor if m < floor else m))
    for c in range(C):
        y[c] = z[c] * s


cdef inline void rescale_backward_row(
    float* dz, float* dx, const float* dy, const float* z, const float* x, Py_ssize_t C,
    float floor,
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float m = dot_(z, z, C) / C, q = dot_(x, x, C) / C, g = dot_(dy, z, C) / C
    cdef float s = sqrtf(q / (floor if m < floor else m))
    cdef float across = 0 if m < floor else g * s / m, along = 0 if q == 0 else g * s / q
    for c in range(C):
        dz[c] = s * dy[c] - z[c] * across
        dx[c] = x[c] * along


predict = entry("rows N: y[N A C] <- x[N A C] w[N A*A]")
predict_backward = entry("rows N: dx[N A C] dw[N A*A] <- dy[N A C] x[N A C] w[N A*A]")
correct = entry("rows N: y[N A C] <- p[N A C] a[N C] w[N A] f[N C]?")
correct_backward = entry(
    "rows N: dp[N A C] da[N C] dw[N A] df[N C]? <- dy[N A C] p[N A C] a[N C] w[N A]"
)
rescale = entry("rows N: y[N C] <- z[N C] x[N C] | floor=1e-5")
rescale_backward = entry("rows N: dz[N C] dx[N C] <- dy[N C] z[N C] x[N C] | floor=1e-5")
