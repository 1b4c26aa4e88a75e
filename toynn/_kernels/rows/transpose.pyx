"""Swap two neighbouring axes.

    y[a,m,n,b] = x[a,n,m,b]         dx[a,n,m,b] = dy[a,m,n,b]

The gradient is the same kernel with N and M swapped. A is what stands in front of the two axes, B
what stands behind them; other orders of axes are several such swaps. float32, C-contiguous; y is
overwritten.
"""
from libc.string cimport memcpy

from toynn._kernels.base.entry cimport entry


cdef enum:
    LINE = 16  # rows of y that are written together: a cache line of x


cdef inline void forward_rows(
    float* y, const float* x, Py_ssize_t M, Py_ssize_t N, Py_ssize_t B, Py_ssize_t count,
    Py_ssize_t at
) noexcept nogil:
    cdef Py_ssize_t done = 0, width, n, k
    cdef const float* first
    while done < count:  # rows of the same a
        first = x + ((at + done) // M * N * M + (at + done) % M) * B
        width = min(LINE, M - (at + done) % M, count - done)
        for n in range(N):
            if B == 1:
                for k in range(width):
                    y[(done + k) * N + n] = first[n * M + k]
            else:
                for k in range(width):
                    memcpy(y + ((done + k) * N + n) * B, first + (n * M + k) * B, B * sizeof(float))
        done += width


forward = entry("rows A*M: y[A M N B] <- x[A N M B]")
