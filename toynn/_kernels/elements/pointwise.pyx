"""Arithmetic and functions of one number: for each op its formula, and its slope below it.

    sub     y = a - b                da = dy               db = -dy
    mul     y = a b                  da = dy b             db = dy a
    div     y = a / b                da = dy / b           div_backward: db = -dy y / b
    affine  y = alpha x + beta       dx = alpha dy
    square  y = x^2                  dx = 2 x dy
    power   y = x^p                  dx = p x^(p-1) dy
    exp     y = e^x                  dx = y dy
    log     y = ln x                 dx = dy / x
    sqrt    y = x^(1/2)              dx = dy / (2 y)
    tanh    y = tanh x               dx = (1 - y^2) dy
    abs     y = |x|                  dx = sign(x) dy       sign(0) = 0
    relu    y = max(x, 0)            dx = dy if y > 0, else 0
    masked  y = x if (mask != 0) = keep, else 0            dx = dy, masked alike

A slope that is one of the ops above has no kernel of its own: that of exp is mul, that of log div.
n elements; p, alpha and beta are numbers. float32, C-contiguous. In place: as the signatures say.
The logarithm of 0 is -infinity. That of a number below 0 is NaN, as are its square root and its
powers with a fraction.
Source: Griewank & Walther, Evaluating Derivatives, 2nd ed. 2008, table 3.3.
"""
from libc.math cimport fabsf, powf, sqrtf

from toynn._kernels.base._common cimport exp_, log_, tanh_
from toynn._kernels.base.entry cimport entry


cdef inline float sub_element(float a, float b) noexcept nogil:
    return a - b


cdef inline float mul_element(float a, float b) noexcept nogil:
    return a * b


cdef inline float div_element(float a, float b) noexcept nogil:
    return a / b


cdef inline float div_backward_element(float dy, float y, float b) noexcept nogil:
    return -dy * y / b


cdef inline float affine_element(float x, float alpha, float beta) noexcept nogil:
    return alpha * x + beta


cdef inline float square_element(float x) noexcept nogil:
    return x * x


cdef inline float square_backward_element(float dy, float x) noexcept nogil:
    return 2 * x * dy


cdef inline float power_element(float x, float p) noexcept nogil:
    return powf(x, p)


cdef inline float power_backward_element(float dy, float x, float p) noexcept nogil:
    return p * powf(x, p - 1) * dy


cdef inline float exp_element(float x) noexcept nogil:
    return exp_(x)


cdef inline float log_element(float x) noexcept nogil:
    return log_(x)


cdef inline float sqrt_element(float x) noexcept nogil:
    return sqrtf(x)


cdef inline float sqrt_backward_element(float dy, float y) noexcept nogil:
    return dy / (2 * y)


cdef inline float tanh_element(float x) noexcept nogil:
    cdef float slope = 0
    return tanh_(x, &slope)


cdef inline float tanh_backward_element(float dy, float y) noexcept nogil:
    return dy * ((1 - y) * (1 + y))


cdef inline float abs_element(float x) noexcept nogil:
    return fabsf(x)


cdef inline float abs_backward_element(float dy, float x) noexcept nogil:
    return dy * <float>((x > 0) - (x < 0))


cdef inline float relu_element(float x) noexcept nogil:
    return 0 if x < 0 else x


cdef inline float relu_backward_element(float dy, float y) noexcept nogil:
    return dy if y > 0 else 0


cdef inline float masked_element(float x, int mask, Py_ssize_t keep) noexcept nogil:
    return x if (mask != 0) == keep else 0


sub = entry("elements n: y[n]=a=b <- a[n] b[n]")
mul = entry("elements n: y[n]=a=b <- a[n] b[n]")
div = entry("elements n: y[n]=a=b <- a[n] b[n]")
div_backward = entry("elements n: db[n]=dy <- dy[n] y[n] b[n]")
affine = entry("elements n: y[n]=x <- x[n] | float alpha=1 float beta=0")
square = entry("elements n: y[n]=x <- x[n]")
square_backward = entry("elements n: dx[n]=dy <- dy[n] x[n]")
power = entry("elements n: y[n]=x <- x[n] | float p")
power_backward = entry("elements n: dx[n]=dy <- dy[n] x[n] | float p")
exp = entry("elements n: y[n]=x <- x[n]")
log = entry("elements n: y[n]=x <- x[n]")
sqrt = entry("elements n: y[n]=x <- x[n]")
sqrt_backward = entry("elements n: dx[n]=dy <- dy[n] y[n]")
tanh = entry("elements n: y[n]=x <- x[n]")
tanh_backward = entry("elements n: dx[n]=dy <- dy[n] y[n]")
abs = entry("elements n: y[n]=x <- x[n]")
abs_backward = entry("elements n: dx[n]=dy <- dy[n] x[n]")
relu = entry("elements n: y[n]=x <- x[n]")
relu_backward = entry("elements n: dx[n]=dy <- dy[n] y[n]")
masked = entry("elements n: y[n]=x <- x[n] i32 mask[n] | keep=1")
