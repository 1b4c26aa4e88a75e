"""GeGLU: gelu of the gate times up, the activation in the middle of a Gemma MLP.

    y     = gelu(g) u                    gelu(g) = g s,  s = 1 / (1 + e^-v)
    dgate = dy u gelu'(g)                v = sqrt(8 / pi) (g + 0.044715 g^3)
    dup   = dy gelu(g)                   gelu'(g) = s + g s (1 - s) v'

GELU's tanh form, or exact: gelu(g) = g P(g), as in gelu.pyx. n elements; g is gate, u is up.
float32, C-contiguous. dgate and dup are overwritten. In place: y, dgate and dup may each be one of
the inputs, but not the same one.
Source: Shazeer 2020, arXiv:2002.05202, section 2.
"""
from toynn._kernels.activations._gelu cimport gelu_exact, gelu_tanh, slope_exact, slope_tanh
from toynn._kernels.base.entry cimport entry


cdef inline float forward_element(float gate, float up, bint exact) noexcept nogil:
    return (gelu_exact(gate) if exact else gelu_tanh(gate)) * up


cdef inline void backward_element(
    float* dgate, float* dup, float dy, float gate, float up, bint exact
) noexcept nogil:
    dgate[0] = dy * up * (slope_exact(gate) if exact else slope_tanh(gate))
    dup[0] = dy * (gelu_exact(gate) if exact else gelu_tanh(gate))


forward = entry("elements n: y[n]=gate=up <- gate[n] up[n] | exact=0")
backward = entry(
    "elements n: dgate[n]=gate=dy=up dup[n]=up=dy=gate <- dy[n] gate[n] up[n] | exact=0"
)
