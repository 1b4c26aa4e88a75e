"""Sums over an axis, and copies along one: each is the gradient of the other.

    forward  y[a,b]   = alpha sum_n x[a,n,b]
    expand   y[a,n,b] = alpha x[a,b]

The middle axis is summed, or made: N numbers. A is what stands in front of it, B what stands
behind it. With alpha = 1 / N, forward is the mean. float32, C-contiguous; y is overwritten, or
forward adds to it if accumulate is set. Sums are of doubles, n ascending: for B = 1, in 16 partial
sums. They do not depend on the threads.
"""
from toynn._kernels.base._columns cimport COLS
from toynn._kernels.base._common cimport LANES
from toynn._kernels.base.entry cimport entry


cdef inline double _sum(const float* x, Py_ssize_t N) noexcept nogil:
    cdef double[LANES] acc
    cdef double total = 0
    cdef Py_ssize_t n, block, whole = N - N % LANES
    cdef int k
    for k in range(LANES):
        acc[k] = 0
    for block in range(N // LANES):
        for k in range(LANES):
            acc[k] += x[block * LANES + k]
    for n in range(whole, N):
        acc[n - whole] += x[n]
    for k in range(LANES):
        total += acc[k]
    return total


cdef inline void forward_rows(
    float* y, const float* x, Py_ssize_t N, Py_ssize_t B, float alpha, bint accumulate,
    Py_ssize_t count, Py_ssize_t at
) noexcept nogil:
    cdef double[COLS] acc
    cdef Py_ssize_t done = 0, width, n, c
    cdef const float* first
    while done < count:  # up to COLS sums at a time, of the same a
        first = x + (at + done) // B * N * B + (at + done) % B
        width = min(COLS, B - (at + done) % B, count - done)
        if B == 1:
            acc[0] = _sum(first, N)
        else:
            for c in range(width):
                acc[c] = 0
            for n in range(N):
                for c in range(width):
                    acc[c] += first[n * B + c]
        for c in range(width):
            y[done + c] = <float>(alpha * acc[c] + (y[done + c] if accumulate else 0))
        done += width


cdef inline void expand_rows(
    float* y, const float* x, Py_ssize_t N, Py_ssize_t B, float alpha, Py_ssize_t count,
    Py_ssize_t at
) noexcept nogil:
    cdef Py_ssize_t done = 0, run, i, b
    cdef const float* row
    while done < count:  # rows of the same a
        row, run = x + (at + done) // N * B, min(N - (at + done) % N, count - done)
        if B == 1:
            for i in range(done, done + run):
                y[i] = alpha * row[0]
        else:
            for i in range(done, done + run):
                for b in range(B):
                    y[i * B + b] = alpha * row[b]
        done += run


forward = entry("rows A*B: y[A B]+ <- x[A N B] | float alpha=1")
expand = entry("rows A*N: y[A N B] <- x[A B] | float alpha=1")
