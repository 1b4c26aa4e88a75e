"""Rounding of float32 to the values of a 16-bit type: to nearest, ties to even.

    float16:  y = x rounded to 11 significant bits; below 2^-14, to a multiple of 2^-24;
              infinite from 65520 on
    bfloat16: y = x rounded to 8 significant bits
    narrow  z = the upper 16 bits of x rounded to bfloat16
    widen  y = the number with the upper bits z, and zeros below

n elements. float32, C-contiguous; y is overwritten and may be x. NaN stays NaN. There is no
backward: the gradient of the rounded weight serves as that of the weight (straight through).
Activations kept for the backward pass may be narrowed, then widened: graph/narrowing.py.
Sources: IEEE 754-2019, sections 3.6 and 4.3.1; Bengio et al. 2013, arXiv:1308.3432.
"""
cimport cython
from libc.math cimport INFINITY, fabsf
from libc.string cimport memcpy

from toynn._kernels.base.entry cimport entry


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


cdef inline float forward_element(float x, bint brain) noexcept nogil:
    return _bfloat16(x) if brain else _float16(x)


cdef inline unsigned short narrow_element(float x) noexcept nogil:
    cdef float y = _bfloat16(x)
    cdef unsigned int u
    memcpy(&u, &y, 4)
    return <unsigned short>((u | (<unsigned int>(y != y) << 22)) >> 16)  # NaN: a kept bit


cdef inline float widen_element(unsigned short z) noexcept nogil:
    cdef unsigned int u = <unsigned int>z << 16
    cdef float y
    memcpy(&y, &u, 4)
    return y


forward = entry("elements n: y[n]=x <- x[n] | brain=0")
narrow = entry("elements n: u16 z[n] <- x[n]")
widen = entry("elements n: y[n] <- u16 z[n]")
