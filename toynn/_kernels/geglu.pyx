"""GeGLU: gelu of the gate times up, the activation in the middle of a Gemma MLP.

    y     = gelu(g) u                    gelu(g) = g s,  s = 1 / (1 + e^-v)
    dgate = dy u gelu'(g)                v = sqrt(8 / pi) (g + 0.044715 g^3)
    dup   = dy gelu(g)                   gelu'(g) = s + g s (1 - s) v'

GELU's tanh form, as in gelu.pyx. n elements; g is gate, u is up. float32, C-contiguous. dgate and
dup are overwritten. In place: y, dgate and dup may each be one of the inputs, but not the same one.
Source: Shazeer 2020, arXiv:2002.05202, section 2.
"""

from toynn._kernels._common cimport at1
from toynn._kernels._entry cimport entry
from toynn._kernels._gelu cimport gelu_tanh, slope_tanh
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void _block_forward(
    float* y, const float* gate, const float* up, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = gelu_tanh(gate[i]) * up[i]


cdef inline void _block_backward(
    float* dgate, float* dup, const float* dy, const float* gate, const float* up, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float d, g, u
    for i in range(n):
        d, g, u = dy[i], gate[i], up[i]
        dgate[i] = d * u * slope_tanh(g)
        dup[i] = d * gelu_tanh(g)


cdef void _forward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* gate = <const float*>a.t[1]
    cdef const float* up = <const float*>a.t[2]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_forward(y + i, gate + i, up + i, min(BLOCK, n - i))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_forward_blocks, a, (n + BLOCK - 1) // BLOCK)


cdef void _backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dgate = <float*>a.t[0]
    cdef float* dup = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* gate = <const float*>a.t[3]
    cdef const float* up = <const float*>a.t[4]
    cdef Py_ssize_t b, i, n = a.n[0]
    for b in range(first, last):
        i = b * BLOCK
        _block_backward(
            dgate + i, dup + i, dy + i, gate + i, up + i, min(BLOCK, n - i)
        )


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_for(_backward_blocks, a, (n + BLOCK - 1) // BLOCK)


def forward(float[::1] y, const float[::1] gate, const float[::1] up, int n_threads=1):
    """Overwrite y (n,) from gate (n,) and up (n,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = gate.shape[0]
    check("geglu.forward", f"gate ({n},)", n_threads, y=(y, (n,)), up=(up, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(y), at1(gate), at1(up)
    a.n[0] = n
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[::1] dgate, float[::1] dup, const float[::1] dy, const float[::1] gate,
    const float[::1] up, int n_threads=1,
):
    """Overwrite dgate (n,) and dup (n,) from dy, gate and up (n,)."""
    cdef KernelArgs a
    cdef Py_ssize_t n = gate.shape[0]
    check(
        "geglu.backward", f"gate ({n},)", n_threads, dgate=(dgate, (n,)), dup=(dup, (n,)),
        dy=(dy, (n,)), up=(up, (n,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at1(dgate), at1(dup), at1(dy), at1(gate), at1(up)
    a.n[0] = n
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "y gate up", sizes="n"),
    "backward": entry(_backward, "dgate dup dy gate up", sizes="n"),
}
