"""Sum of two arrays, array times number, and the gradient of a bias.

    add            y[i]   = a[i] + b[i]
    scale          y[i]   = alpha x[i]
    accumulate     g[i]   = x[i], or g[i] + x[i] if accumulate is set
    bias_backward  db[c]  = sum_n dy[n,c]

A bias is added by matmul. Other gradients need no kernel: for add the gradient is dy; for scale it
is scale, applied to dy. n elements; N rows, C channels. float32, C-contiguous. In place: y may be
a, b or x. y is overwritten; db is overwritten, or added to if accumulate is set.
"""
from toynn._kernels.base.entry cimport entry


cdef inline float add_element(float a, float b) noexcept nogil:
    return a + b


cdef inline float scale_element(float x, float alpha) noexcept nogil:
    return alpha * x


cdef inline float accumulate_element(float g, float x, bint accumulate) noexcept nogil:
    return g + x if accumulate else x


cdef inline void bias_backward_sums(float* db, const float* dy, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(width):
        db[c] += dy[c]


add = entry("elements n: y[n]=a=b <- a[n] b[n]")
scale = entry("elements n: y[n]=x <- x[n] | float alpha")
accumulate = entry("elements n: g[n]+ <- x[n]")
bias_backward = entry("sums C over N: db[C]+ <- dy[N C]")
