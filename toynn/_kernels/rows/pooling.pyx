"""Mean pooling: one row for each text of a packed batch, the mean of its rows.

    y[s,c]  = sum of x[n,c] over n = bounds[s] .. bounds[s+1] - 1, divided by their number
    dx[n,c] = dy[s,c] / number of rows of s, for the s that holds row n; 0 if none does

x (N,C) holds the rows of S texts, one after the other. bounds (S+1,), int32, rise from 0 or more to
at most N. Equal bounds are a text without rows, whose mean is 0. float32, C-contiguous; outputs are
overwritten and alias no input. Nothing is saved. A thread owns rows of y, or of dx, so each sum has
the order of its rows, whatever the number of threads, and the bits of a batch of its own.
Source: Reimers & Gurevych 2019 (Sentence-BERT), arXiv:1908.10084, section 3.
"""
from libc.string cimport memset

from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import bounds_rise


cdef inline void _add(float* y, const float* x, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(C):
        y[c] += x[c]


cdef inline void _scaled(float* y, const float* x, float factor, Py_ssize_t C) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(C):
        y[c] = factor * x[c]


cdef inline void forward_row(
    float* y, const float* x, const int* bounds, Py_ssize_t N, Py_ssize_t C, Py_ssize_t at
) noexcept nogil:
    cdef Py_ssize_t n, end = min(bounds[at + 1], N)
    memset(y, 0, C * sizeof(float))
    for n in range(bounds[at], end):
        _add(y, x + n * C, C)
    if end > bounds[at]:
        _scaled(y, y, <float>1.0 / <float>(end - bounds[at]), C)


cdef inline Py_ssize_t _holder(const int* bounds, Py_ssize_t S, Py_ssize_t n) noexcept nogil:
    """The text that holds row n, by halving; S if none does."""
    cdef Py_ssize_t low = 0, high = S + 1, middle  # bounds below low are <= n, from high on > n
    while low < high:
        middle = (low + high) // 2
        if bounds[middle] <= n:
            low = middle + 1
        else:
            high = middle
    return low - 1 if 0 < low <= S else S


cdef inline void backward_row(
    float* dx, const float* dy, const int* bounds, Py_ssize_t S, Py_ssize_t N, Py_ssize_t C,
    Py_ssize_t at,
) noexcept nogil:
    cdef Py_ssize_t s = _holder(bounds, S, at)
    if s == S:
        memset(dx, 0, C * sizeof(float))
        return
    _scaled(dx, dy + s * C, <float>1.0 / <float>(min(bounds[s + 1], N) - bounds[s]), C)


forward = entry("rows S: y[S C] <- x[N C] i32 bounds[S+1]", bounds_rise)
backward = entry("rows N: dx[N C] <- dy[S C] i32 bounds[S+1]", bounds_rise)
