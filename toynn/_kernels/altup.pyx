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

from toynn._kernels._common cimport dot_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.altup cimport (
    Correct, CorrectBackward, Predict, PredictBackward, Rescale, RescaleBackward,
)
from toynn._kernels.entry cimport entry


cdef inline void _add_times(
    float* y, const float* x, float w, Py_ssize_t C
) noexcept nogil:
    """y += w x."""
    cdef Py_ssize_t c
    for c in range(C):
        y[c] += w * x[c]


cdef void _predict_rows(Predict* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, i, j, A = a.A, C = a.C
    cdef const float* x
    cdef float* y
    for n in range(first, last):
        x = a.x + n * A * C
        y = a.y + n * A * C
        memcpy(y, x, A * C * sizeof(float))
        for i in range(A):
            for j in range(A):
                _add_times(y + i * C, x + j * C, a.w[(n * A + i) * A + j], C)


cdef void _predict(Predict* a) noexcept nogil:
    parallel_for(<part_fn>_predict_rows, a, a.N if a.A and a.C else 0)


cdef void _predict_backward_rows(
    PredictBackward* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef Py_ssize_t n, i, j, at, A = a.A, C = a.C
    cdef const float* x
    cdef const float* dy
    cdef float* dx
    for n in range(first, last):
        x = a.x + n * A * C
        dy = a.dy + n * A * C
        dx = a.dx + n * A * C
        if A * C:
            memcpy(dx, dy, A * C * sizeof(float))
        for i in range(A):
            for j in range(A):
                at = (n * A + i) * A + j
                _add_times(dx + j * C, dy + i * C, a.w[at], C)
                a.dw[at] = dot_(dy + i * C, x + j * C, C)


cdef void _predict_backward(PredictBackward* a) noexcept nogil:
    parallel_for(<part_fn>_predict_backward_rows, a, a.N if a.A else 0)


cdef void _correct_rows(Correct* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, i, c, A = a.A, C = a.C
    cdef float w
    cdef const float* p
    cdef const float* new
    cdef float* y
    for n in range(first, last):
        p = a.p + n * A * C
        new = a.a + n * C
        for i in range(A):
            w = 1 + a.w[n * A + i]
            y = a.y + (n * A + i) * C
            for c in range(C):
                y[c] = p[i * C + c] + w * (new[c] - p[c])
            if i > 0 and a.f != NULL:
                _add_times(y, a.f + n * C, 1, C)


cdef void _correct(Correct* a) noexcept nogil:
    parallel_for(<part_fn>_correct_rows, a, a.N if a.A and a.C else 0)


cdef void _correct_backward_rows(
    CorrectBackward* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef Py_ssize_t n, i, c, A = a.A, C = a.C
    cdef const float* p
    cdef const float* dy
    cdef float* da
    cdef float* df
    for n in range(first, last):
        p = a.p + n * A * C
        dy = a.dy + n * A * C
        da = a.da + n * C
        for c in range(C if A else 0):
            da[c] = a.a[n * C + c] - p[c]
        for i in range(A):
            a.dw[n * A + i] = dot_(dy + i * C, da, C)
        if C:
            memset(da, 0, C * sizeof(float))
        for i in range(A):
            _add_times(da, dy + i * C, 1 + a.w[n * A + i], C)
        if A * C:
            memcpy(a.dp + n * A * C, dy, A * C * sizeof(float))
            _add_times(a.dp + n * A * C, da, -1, C)
        if a.df != NULL and C:
            df = a.df + n * C
            memset(df, 0, C * sizeof(float))
            for i in range(1, A):
                _add_times(df, dy + i * C, 1, C)


cdef void _correct_backward(CorrectBackward* a) noexcept nogil:
    parallel_for(<part_fn>_correct_backward_rows, a, a.N if a.A or a.C else 0)


cdef void _rescale_rows(Rescale* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n, c, C = a.C
    cdef float m, s
    cdef const float* x
    cdef const float* z
    for n in range(first, last):
        x = a.x + n * C
        z = a.z + n * C
        m = dot_(z, z, C) / C
        s = sqrtf(dot_(x, x, C) / C / (a.floor if m < a.floor else m))
        for c in range(C):
            a.y[n * C + c] = z[c] * s


cdef void _rescale(Rescale* a) noexcept nogil:
    parallel_for(<part_fn>_rescale_rows, a, a.N if a.C else 0)


cdef void _rescale_backward_rows(
    RescaleBackward* a, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    cdef Py_ssize_t n, c, C = a.C
    cdef float m, q, s, g, across, along
    cdef const float* x
    cdef const float* z
    cdef const float* dy
    for n in range(first, last):
        x = a.x + n * C
        z = a.z + n * C
        dy = a.dy + n * C
        m = dot_(z, z, C) / C
        q = dot_(x, x, C) / C
        g = dot_(dy, z, C) / C
        s = sqrtf(q / (a.floor if m < a.floor else m))
        across = 0 if m < a.floor else g * s / m
        along = 0 if q == 0 else g * s / q
        for c in range(C):
            a.dz[n * C + c] = s * dy[c] - z[c] * across
            a.dx[n * C + c] = x[c] * along


cdef void _rescale_backward(RescaleBackward* a) noexcept nogil:
    parallel_for(<part_fn>_rescale_backward_rows, a, a.N if a.C else 0)


predict = entry(<kernel_fn>_predict, "y[N A C] <- x[N A C] w[N A*A]")
predict_backward = entry(
    <kernel_fn>_predict_backward, "dx[N A C] dw[N A*A] <- dy[N A C] x[N A C] w[N A*A]"
)
correct = entry(<kernel_fn>_correct, "y[N A C] <- p[N A C] a[N C] w[N A] f[N C]?")
correct_backward = entry(
    <kernel_fn>_correct_backward,
    "dp[N A C] da[N C] dw[N A] df[N C]? <- dy[N A C] p[N A C] a[N C] w[N A]",
)
rescale = entry(<kernel_fn>_rescale, "y[N C] <- z[N C] x[N C] | floor=1e-5")
rescale_backward = entry(
    <kernel_fn>_rescale_backward, "dz[N C] dx[N C] <- dy[N C] z[N C] x[N C] | floor=1e-5"
)
