"""GeGLU: gelu of the gate times up, the activation in the middle of a Gemma MLP.

    y     = gelu(g) u                    gelu(g) = g s,  s = 1 / (1 + e^-v)
    dgate = dy u gelu'(g)                v = sqrt(8 / pi) (g + 0.044715 g^3)
    dup   = dy gelu(g)                   gelu'(g) = s + g s (1 - s) v'

GELU's tanh form, as in gelu.pyx. n elements; g is gate, u is up. float32, C-contiguous. dgate and
dup are overwritten. In place: y, dgate and dup may each be one of the inputs, but not the same one.
Source: Shazeer 2020, arXiv:2002.05202, section 2.
"""

from toynn._kernels._entry cimport entry
from toynn._kernels._gelu cimport gelu_tanh, slope_tanh
from toynn._kernels._pointwise cimport gated_backward, gated_forward, parallel_elements
from toynn._kernels.abi cimport KernelArgs


cdef void _forward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* gate = <const float*>a.t[1]
    cdef const float* up = <const float*>a.t[2]
    cdef Py_ssize_t i
    for i in range(first, last):
        y[i] = gelu_tanh(gate[i]) * up[i]


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_forward_elements, a, n)


cdef void _backward_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dgate = <float*>a.t[0]
    cdef float* dup = <float*>a.t[1]
    cdef const float* dy = <const float*>a.t[2]
    cdef const float* gate = <const float*>a.t[3]
    cdef const float* up = <const float*>a.t[4]
    cdef Py_ssize_t i
    cdef float d, g, u
    for i in range(first, last):
        d, g, u = dy[i], gate[i], up[i]
        dgate[i] = d * u * slope_tanh(g)
        dup[i] = d * gelu_tanh(g)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_backward_elements, a, n)


def forward(float[::1] y, const float[::1] gate, const float[::1] up, int n_threads=1):
    """Overwrite y (n,) from gate (n,) and up (n,)."""
    cdef KernelArgs a
    gated_forward("geglu.forward", _forward, &a, y, gate, up, n_threads)


def backward(
    float[::1] dgate, float[::1] dup, const float[::1] dy, const float[::1] gate,
    const float[::1] up, int n_threads=1,
):
    """Overwrite dgate (n,) and dup (n,) from dy, gate and up (n,)."""
    cdef KernelArgs a
    gated_backward("geglu.backward", _backward, &a, dgate, dup, dy, gate, up, n_threads)


entries = {
    "forward": entry(_forward, "y gate up", sizes="n"),
    "backward": entry(_backward, "dgate dup dy gate up", sizes="n"),
}
