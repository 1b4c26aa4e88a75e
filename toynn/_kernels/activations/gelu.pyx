"""GELU: x times the chance that a standard normal number is below x, exactly or by its tanh form.

    exact:  y  = x P(x)                   P(x) = (1 + erf(x / sqrt 2)) / 2
            dx = dy (P(x) + x p(x))       p(x) = e^(-x^2 / 2) / sqrt(2 pi)

    tanh:   y  = x s(u)                   s(v) = 1 / (1 + e^-v)
            u  = sqrt(8 / pi) (x + 0.044715 x^3)
            dx = dy (s + x s (1 - s) u')  u'   = sqrt(8 / pi) (1 + 0.134145 x^2)

The usual x (1 + tanh(u / 2)) / 2 is the tanh form too: (1 + tanh(u / 2)) / 2 = s(u).
n elements. float32, C-contiguous. In place: y may be x, dx may be dy. dx is overwritten. Saved for
backward: x. matmul applies GELU to its own output, and saves the x of it as pre. tanh is the form
in use unless exact is set. The arithmetic is in _gelu.pxd: root there is sqrt(8 / pi) = 1.5957691,
cubic is 0.044715 root = 0.07135481 in u, and three times that in u'.
Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
"""
from toynn._kernels.activations._gelu cimport gelu_exact, gelu_tanh, slope_exact, slope_tanh
from toynn._kernels.base.entry cimport entry


cdef inline float forward_element(float x, bint exact) noexcept nogil:
    return gelu_exact(x) if exact else gelu_tanh(x)


cdef inline float backward_element(float dy, float x, bint exact) noexcept nogil:
    return dy * (slope_exact(x) if exact else slope_tanh(x))


forward = entry("elements n: y[n]=x <- x[n] | exact=0")
backward = entry("elements n: dx[n]=dy <- dy[n] x[n] | exact=0")
