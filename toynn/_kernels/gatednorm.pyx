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

from toynn._kernels._columns cimport COLS, begin_sums, end_sums
from toynn._kernels._common cimport dot_, sigmoid_, sigmoid_slope_
from toynn._kernels._parallel cimport parallel_for, part_fn
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.gatednorm cimport Backward, Forward
from toynn._kernels.entry cimport entry
from toynn._kernels.gemm._panels cimport blocks_of


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


cdef void _forward_groups(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i, c, C = a.C
    cdef float r
    cdef float* y
    cdef const float* w
    for i in range(first, last):
        y, w = a.y + i * C, a.w + i % a.G * C
        _let_through(y, a.x + i * C, a.z + i * C, C)
        a.r[i] = r = 1 / sqrtf(dot_(y, y, C) / C + a.eps)
        for c in range(C):
            y[c] *= r * w[c]


cdef void _forward(Forward* a) noexcept nogil:
    parallel_for(<part_fn>_forward_groups, a, a.N * a.G if a.C else 0)


cdef void _backward_groups(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Compute dx and dz; in the meantime dx holds w dy, then dh, and dz holds h."""
    cdef Py_ssize_t i, c, C = a.C
    cdef float r, along
    cdef float* dx
    cdef float* dz
    cdef const float* dy
    cdef const float* w
    for i in range(first, last):
        dx, dz, dy, w, r = a.dx + i * C, a.dz + i * C, a.dy + i * C, a.w + i % a.G * C, a.r[i]
        for c in range(C):
            dx[c] = w[c] * dy[c]
        _let_through(dz, a.x + i * C, a.z + i * C, C)
        along = dot_(dx, dz, C) / C * r * r
        for c in range(C):
            dx[c] = r * (dx[c] - dz[c] * along)
        _gate_backward(dx, dz, a.x + i * C, a.z + i * C, C)


cdef void _backward_columns(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Compute dw of blocks of columns, each within one group."""
    cdef Py_ssize_t C = a.C, blocks = blocks_of(a.C, COLS), b, g, n, c, c0, at, width
    cdef float acc[COLS]
    cdef float h[COLS]
    cdef float r
    cdef const float* dy
    for b in range(first, last):
        g = b // blocks
        c0 = b % blocks * COLS
        width = min(COLS, C - c0)
        begin_sums(acc, a.dw + g * C + c0, width, a.accumulate)
        for n in range(a.N):
            at = (n * a.G + g) * C + c0
            r = a.r[n * a.G + g]
            dy = a.dy + at
            _let_through(h, a.x + at, a.z + at, width)
            for c in range(width):
                acc[c] += dy[c] * (h[c] * r)
        end_sums(a.dw + g * C + c0, acc, width)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_for(<part_fn>_backward_groups, a, a.N * a.G if a.C else 0)
    if a.dw != NULL:
        parallel_for(<part_fn>_backward_columns, a, a.G * blocks_of(a.C, COLS))


forward = entry(
    <kernel_fn>_forward, "y[N G*C]; r[N G] <- x[N G*C] z[N G*C] w[G C] | eps=1e-5"
)
backward = entry(
    <kernel_fn>_backward,
    "dx[N G*C] dz[N G*C] dw[G C]?+ <- dy[N G*C] x[N G*C] z[N G*C] w[G C] r[N G]",
)
