"""Rounding of float32 to the values of a 16-bit type: to nearest, ties to even.

    float16:  y = x rounded to 11 significant bits; below 2^-14, to a multiple of 2^-24;
              infinite from 65520 on
    bfloat16: y = x rounded to 8 significant bits

n elements. float32, C-contiguous; y is overwritten and may be x. NaN stays NaN. There is no
backward: the gradient of the rounded weight serves as that of the weight (straight through).
Sources: IEEE 754-2019, sections 3.6 and 4.3.1; Bengio et al. 2013, arXiv:1308.3432.
"""
cimport cython
from libc.math cimport INFINITY, fabsf
from libc.string cimport memcpy

from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.rounding cimport Forward
from toynn._kernels.entry cimport entry


@cython.overflowcheck(False)  # overflows for infinities and NaN alone, whose bits are not used
cdef inline float _without(float x, unsigned int dropped) noexcept nogil:
    """Return x rounded to a mantissa without its last bits, which are set in ``dropped``."""
    cdef unsigned int u
    memcpy(&u, &x, 4)
    u += (dropped >> 1) + ((u & (dropped + 1)) != 0)
    u &= ~dropped
    memcpy(&x, &u, 4)
    return x


cdef inline float _float16(float x) noexcept nogil:
    cdef float magic = 0.75  # its last bit is 2^-24: adding it rounds to a multiple of that
    cdef float wide = _without(x, 0x1FFF), near = (x + magic) - magic, infinity = INFINITY
    cdef float size = fabsf(wide)
    wide = (infinity if wide > 0 else -infinity) if size >= <float>65536.0 else wide
    wide = near if fabsf(x) < <float>6.103515625e-05 else wide
    return wide if x == x else x


cdef inline float _bfloat16(float x) noexcept nogil:
    cdef float zero = 0, wide = _without(x, 0xFFFF)
    wide = zero if fabsf(x) < <float>1.17549435e-38 else wide  # subnormal
    return wide if x == x else x


cdef void _forward_elements(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    if a.brain:
        for i in range(first, last):
            a.y[i] = _bfloat16(a.x[i])
    else:
        for i in range(first, last):
            a.y[i] = _float16(a.x[i])


cdef void _forward(Forward* a) noexcept nogil:
    parallel_elements(<part_fn>_forward_elements, a, a.n)


forward = entry(<kernel_fn>_forward, "y[n]=x <- x[n] | brain=0")
