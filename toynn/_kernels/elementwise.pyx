"""Sum of two arrays, array times number, and the gradient of a bias.

    add            y[i]   = a[i] + b[i]
    scale          y[i]   = alpha x[i]
    accumulate     g[i]   = x[i], or g[i] + x[i] if accumulate is set
    bias_backward  db[c]  = sum_n dy[n,c]

A bias is added by matmul. Other gradients need no kernel: for add the gradient is dy; for scale it
is scale, applied to dy. n elements; N rows, C channels. float32, C-contiguous. In place: y may be
a, b or x. y is overwritten; db is overwritten, or added to if accumulate is set.
"""

from toynn._kernels._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels._parallel cimport part_fn
from toynn._kernels._pointwise cimport parallel_elements
from toynn._kernels.abi cimport kernel_fn
from toynn._kernels.args.elementwise cimport Accumulate, Add, BiasBackward, Scale
from toynn._kernels.entry cimport entry


cdef inline void _columns_db(
    float* db, const float* dy, Py_ssize_t N, Py_ssize_t C, Py_ssize_t width, bint accumulate
) noexcept nogil:
    """db[:width] for the columns at which db and dy already point."""
    cdef float acc[COLS]
    cdef Py_ssize_t n, c
    begin_sums(acc, db, width, accumulate)
    for n in range(N):
        for c in range(width):
            acc[c] += dy[n * C + c]
    end_sums(db, acc, width)


cdef void _add_elements(Add* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = a.a[i] + a.b[i]


cdef void _add(Add* a) noexcept nogil:
    parallel_elements(<part_fn>_add_elements, a, a.n)


cdef void _accumulate_elements(Accumulate* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t i
    if a.accumulate:
        for i in range(first, last):
            a.g[i] += a.x[i]
    else:
        for i in range(first, last):
            a.g[i] = a.x[i]


cdef void _accumulate(Accumulate* a) noexcept nogil:
    parallel_elements(<part_fn>_accumulate_elements, a, a.n)


cdef void _scale_elements(Scale* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float alpha = a.alpha
    cdef Py_ssize_t i
    for i in range(first, last):
        a.y[i] = alpha * a.x[i]


cdef void _scale(Scale* a) noexcept nogil:
    parallel_elements(<part_fn>_scale_elements, a, a.n)


cdef void _bias_backward_blocks(BiasBackward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t b, c
    for b in range(first, last):
        c = b * COLS
        _columns_db(a.db + c, a.dy + c, a.N, a.C, min(COLS, a.C - c), a.accumulate)


cdef void _bias_backward(BiasBackward* a) noexcept nogil:
    parallel_columns(<part_fn>_bias_backward_blocks, a, a.C)


add = entry(<kernel_fn>_add, "y[n]=a=b <- a[n] b[n]")
scale = entry(<kernel_fn>_scale, "y[n]=x <- x[n] | float alpha")
accumulate = entry(<kernel_fn>_accumulate, "g[n]+ <- x[n]")
bias_backward = entry(<kernel_fn>_bias_backward, "db[C]+ <- dy[N C]")
