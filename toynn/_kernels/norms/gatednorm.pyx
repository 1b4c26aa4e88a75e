"""RMSNorm over groups of gated channels: Mamba 2 applies the gate before the norm.

    h[n,g,c]  = x[n,g,c] z s                    s = 1 / (1 + e^-z), z = z[n,g,c]
    r[n,g]    = 1 / sqrt(mean_c h[n,g,c]^2 + eps)
    y[n,g,c]  = h[n,g,c] r[n,g] w[g,c]

    dw[g,c]   = sum_n dy h r                    dh = r (w dy - h r^2 mean_k w dy h)
    dx        = dh z s                          dz = dh x (s + z s (1 - s))

N rows of G groups of C channels. float32, C-contiguous; outputs never alias inputs.
Saved for backward: r (N,G); h is recomputed. dx and dz are overwritten; dw is overwritten, or
added to if accumulate is set.
Source: Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060, section 7; the norm: Zhang &
Sennrich 2019, arXiv:1910.07467.
"""
from libc.math cimport sqrtf

from toynn._kernels.base._columns cimport COLS, begin_sums, end_sums
from toynn._kernels.base._common cimport dot_, mean_, sigmoid_, sigmoid_slope_
from toynn._kernels.base.entry cimport entry
from toynn._kernels.gemm._product cimport blocks_of


cdef inline void _let_through(
    float* h, const float* x, const float* z, Py_ssize_t C
) noexcept nogil:
    """h = x silu(z)."""
    cdef Py_ssize_t c
    for c in range(C):
        h[c] = x[c] * (z[c] * sigmoid_(z[c]))


cdef inline void _gate_backward(
    float* dx, float* dz, const float* x, const float* z, Py_ssize_t C
) noexcept nogil:
    """dx and dz of x silu(z); on entry dx holds the gradient of the product."""
    cdef Py_ssize_t c
    cdef float s, dh, slope = 0
    for c in range(C):
        dh = dx[c]
        s = sigmoid_slope_(z[c], &slope)
        dz[c] = dh * x[c] * (s + z[c] * slope)
        dx[c] = dh * (z[c] * s)


cdef inline void forward_group(
    float* y, float* r, const float* x, const float* z, const float* w, Py_ssize_t at,
    Py_ssize_t G, Py_ssize_t C, float eps,
) noexcept nogil:
    cdef Py_ssize_t c
    cdef float r_n
    _let_through(y, x, z, C)
    r[0] = r_n = 1 / sqrtf(mean_(dot_(y, y, C), C) + eps)
    for c in range(C):
        y[c] *= r_n * w[at % G * C + c]


cdef inline void backward_group(
    float* dx, float* dz, const float* dy, const float* x, const float* z, const float* w, float r,
    Py_ssize_t at, Py_ssize_t G, Py_ssize_t C,
) noexcept nogil:
    """Compute dx and dz; in the meantime dx holds w dy, then dh, and dz holds h."""
    cdef Py_ssize_t c
    cdef float along
    for c in range(C):
        dx[c] = w[at % G * C + c] * dy[c]
    _let_through(dz, x, z, C)
    along = mean_(dot_(dx, dz, C), C) * r * r
    for c in range(C):
        dx[c] = r * (dx[c] - dz[c] * along)
    _gate_backward(dx, dz, x, z, C)


cdef inline void backward_block(
    float* dw, const float* dy, const float* x, const float* z, const float* r, Py_ssize_t at,
    Py_ssize_t N, Py_ssize_t G, Py_ssize_t C, bint accumulate,
) noexcept nogil:
    """Compute dw of a block of columns within one group."""
    cdef Py_ssize_t blocks = blocks_of(C, COLS), g = at // blocks, c0 = at % blocks * COLS
    cdef Py_ssize_t width = min(COLS, C - c0), n, c, i
    cdef float[COLS] acc
    cdef float[COLS] h
    begin_sums(acc, dw + g * C + c0, width, accumulate)
    for n in range(N):
        i = (n * G + g) * C + c0
        _let_through(h, x + i, z + i, width)
        for c in range(width):
            acc[c] += dy[i + c] * (h[c] * r[n * G + g])
    end_sums(dw + g * C + c0, acc, width)


forward = entry("groups N*G: y[N G*C]; r[N G] <- x[N G*C] z[N G*C] w[G C] | eps=1e-5")
backward = entry(
    "groups N*G, blocks G*blocks_of(C,COLS): "
    "dx[N G*C] dz[N G*C] dw[G C]?+ <- dy[N G*C] x[N G*C] z[N G*C] w[G C] r[N G]"
)
