"""GeGLU: gelu of the gate times up, the activation in the middle of a Gemma MLP.

    y     = gelu(g) u                    gelu(g) = g s,  s = 1 / (1 + e^-v)
    dgate = dy u gelu'(g)                v = sqrt(8 / pi) (g + 0.044715 g^3)
    dup   = dy gelu(g)                   gelu'(g) = s + g s (1 - s) v'

GELU's tanh form, as in gelu.pyx. n elements; g is gate, u is up. float32, C-contiguous. dgate and
dup are overwritten. In place: y, dgate and dup may each be one of the inputs, but not the same one.
Source: Shazeer 2020, arXiv:2002.05202, section 2.
"""

from toynn._kernels._gelu cimport gelu_tanh, slope_tanh
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.geglu cimport Backward, Forward
from toynn._kernels.entry cimport entry


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = gelu_tanh(a.gate[i]) * a.up[i]


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


cdef void _backward_elements(Backward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    cdef float d, g, u
    for i in range(first, last):
        d, g, u = a.dy[i], a.gate[i], a.up[i]
        a.dgate[i] = d * u * slope_tanh(g)
        a.dup[i] = d * gelu_tanh(g)


cdef void _backward(Backward* a) noexcept nogil:
    parallel_elements(<part_fn>_backward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=gate=up <- gate[n] up[n]")
backward = entry(
    <kernel_fn>_backward, "dgate[n]=gate=dy=up dup[n]=up=dy=gate <- dy[n] gate[n] up[n]"
)
