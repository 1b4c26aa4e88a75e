"""Sum of two arrays, array times number, and the gradient of a bias.

    add            y[i]   = a[i] + b[i]
    scale          y[i]   = alpha x[i]
    accumulate     g[i]   = x[i], or g[i] + x[i] if accumulate is set
    bias_backward  db[c]  = sum_n dy[n,c]

A bias is added by matmul. Other gradients need no kernel: that of add is dy, that of scale scale.
n elements; N rows, C channels. float32, C-contiguous. In place: y may be a, b or x.
y is overwritten; db is overwritten, or added to if accumulate is set.
"""

from toynn._kernels._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels._common cimport at1, at2
from toynn._kernels._entry cimport entry
from toynn._kernels._pointwise cimport parallel_elements, unary_forward
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


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


cdef void _add_elements(KernelArgs* k, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>k.t[0]
    cdef const float* a = <const float*>k.t[1]
    cdef const float* b = <const float*>k.t[2]
    cdef Py_ssize_t i
    for i in range(first, last):
        y[i] = a[i] + b[i]


cdef void _add(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_add_elements, a, n)


cdef void _accumulate_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* g = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef Py_ssize_t i
    if a.accumulate:
        for i in range(first, last):
            g[i] += x[i]
    else:
        for i in range(first, last):
            g[i] = x[i]


cdef void _accumulate(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_accumulate_elements, a, n)


cdef void _scale_elements(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef float alpha = a.f[0]
    cdef Py_ssize_t i
    for i in range(first, last):
        y[i] = alpha * x[i]


cdef void _scale(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t n = a.n[0]
    parallel_elements(_scale_elements, a, n)


cdef void _bias_backward_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* db = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef Py_ssize_t b, c, N = a.n[0], C = a.n[1]
    for b in range(first, last):
        c = b * COLS
        _columns_db(db + c, dy + c, N, C, min(COLS, C - c), a.accumulate)


cdef void _bias_backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t C = a.n[1]
    parallel_columns(_bias_backward_blocks, a, C)


def add(float[::1] y, const float[::1] a, const float[::1] b, int n_threads=1):
    """Overwrite y (n,) with a + b."""
    cdef KernelArgs k
    cdef Py_ssize_t n = a.shape[0]
    check("elementwise.add", f"a ({n},)", n_threads, y=(y, (n,)), b=(b, (n,)))
    k.t[0], k.t[1], k.t[2] = at1(y), at1(a), at1(b)
    k.n[0] = n
    k.n_threads = n_threads
    with nogil:
        _add(&k)


def accumulate(float[::1] g, const float[::1] x, bint accumulate=False, int n_threads=1):
    """Overwrite g (n,) with x, or add x to it when ``accumulate`` is set."""
    cdef KernelArgs k
    cdef Py_ssize_t n = x.shape[0]
    check("elementwise.accumulate", f"x ({n},)", n_threads, g=(g, (n,)))
    k.t[0], k.t[1] = at1(g), at1(x)
    k.n[0] = n
    k.accumulate = accumulate
    k.n_threads = n_threads
    with nogil:
        _accumulate(&k)


def scale(float[::1] y, const float[::1] x, float alpha, int n_threads=1):
    """Overwrite y (n,) with alpha x."""
    cdef KernelArgs k
    k.f[0] = alpha
    unary_forward("elementwise.scale", _scale, &k, y, x, n_threads)


def bias_backward(
    float[::1] db, const float[:, ::1] dy, bint accumulate=False, int n_threads=1
):
    """Overwrite db (C,) with the sum of dy (N,C) over its rows, or add that to it."""
    cdef KernelArgs k
    cdef Py_ssize_t N = dy.shape[0], C = dy.shape[1]
    check("elementwise.bias_backward", f"dy ({N}, {C})", n_threads, db=(db, (C,)))
    k.t[0], k.t[1] = at1(db), at2(dy)
    k.n[0], k.n[1] = N, C
    k.accumulate = accumulate
    k.n_threads = n_threads
    with nogil:
        _bias_backward(&k)


entries = {
    "add": entry(_add, "y a b", sizes="n"),
    "scale": entry(_scale, "y x", sizes="n", options="alpha"),
    "accumulate": entry(_accumulate, "g x", sizes="n"),
    "bias_backward": entry(_bias_backward, "db dy", sizes="N C"),
}
