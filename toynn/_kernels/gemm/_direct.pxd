"""Products that pack nothing in advance: GEMV_INT8, GEMV, SKINNY, SMALL (see _product.pxd)."""
from libc.string cimport memset

from toynn._kernels.base._common cimport (
    LANES, add_products, flush_denormals, fpstate, restore_fpstate,
)
from toynn._kernels.base._parallel cimport deal
from toynn._kernels.gemm._gemm cimport multiply
from toynn._kernels.gemm._int8 cimport dot_codes_of, dot_fn, round_rows, rounded_row
from toynn._kernels.gemm._loops cimport finish_row, is_sum
from toynn._kernels.gemm._product cimport (
    GEMV_INT8, GEMV_ROWS, LINE, Operand, Product, aligned, blocks_of, is_floats, panel_start,
    prefetch_stretch, resize, row_of,
)
from toynn._kernels.quants._types cimport dequantize

cdef extern from "gemv.h" nogil:
    enum: TOGETHER "TN_TOGETHER"  # how many rows of w
    void add_products_of_rows "tn_add_rows" (
        float* sums, Py_ssize_t sums_row, const float* x, Py_ssize_t x_row, Py_ssize_t M,
        const float** w, Py_ssize_t n,
    ) noexcept
    float sum_lanes "tn_sum_lanes" (const float* sums) noexcept
    void sum_rows "tn_sum_rows" (float* y, const float* sums) noexcept

cdef enum:
    OUTPUTS = 16  # columns of y per task of GEMV
    TERMS = 1024  # of each row of w that is dequantized, at a time
    MOST = 64     # rows of x by which a dequantized row of w is multiplied


cdef inline void multiply_share(const Product* p, Py_ssize_t i, int shares) noexcept nogil:
    """Compute share i of a product in place: a range of C's rows, or of its columns if more."""
    cdef Operand a = p.a, b = p.b
    cdef Py_ssize_t row = 0, column = 0, N = b.size, last, r
    if a.size >= b.size:
        row, last = i * a.size // shares, (i + 1) * a.size // shares
        a.x += row * a.stride
        resize(&a, last - row)
    elif shares > 1:  # SKINNY: B has contiguous columns, or one panel, which the last share takes
        column = panel_start(&p.b, i * p.b.panels // shares)
        b.x += column
        resize(&b, panel_start(&p.b, (i + 1) * p.b.panels // shares) - column)
    multiply(p.c + row * N + column, N, &a, &b, p.K, p.add)
    for r in range(row, row if is_sum(p) else row + a.size):
        finish_row(p, r * N + column, column, b.size)


cdef inline void multiply_small(const Product* p) noexcept nogil:
    """SMALL: all on one thread."""
    cdef fpstate before = flush_denormals()
    multiply_share(p, 0, 1)
    restore_fpstate(before)


cdef struct Direct:
    const Product* p
    int shares             # SKINNY
    const float* rounded   # GEMV_INT8


cdef inline void _skinny_shares(void* direct, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Direct* d = <const Direct*>direct
    cdef Py_ssize_t i
    for i in range(first, last):
        multiply_share(d.p, i, d.shares)


cdef inline void multiply_skinny(const Product* p, int n_threads) noexcept nogil:
    """SKINNY: each thread has a share of the longer side."""
    cdef Direct d = Direct(p, n_threads, NULL)
    deal(_skinny_shares, &d, n_threads, n_threads)


cdef inline const float* _stretch(
    const Operand* b, Py_ssize_t r, Py_ssize_t k, Py_ssize_t kc, float* buffer
) noexcept nogil:
    """Return terms k .. k + kc - 1 of column r, a row of any type, as floats; maybe in buffer."""
    if is_floats(b):
        return b.x + r * b.stride + k
    dequantize(&b.type, buffer, row_of(b, r), k, kc)
    return buffer


cdef inline void _dot_rows(
    const Product* p, float* c, const float* x, Py_ssize_t M, Py_ssize_t n0, Py_ssize_t n1
) noexcept nogil:
    """Columns n0 .. n1 - 1 of M rows.

    Several rows of w are dequantized and multiplied side by side, a stretch of each at a time.
    For a few rows of x, long rows of floats are read one by one: reading them takes longer than
    multiplying.
    """
    cdef float buffer[TOGETHER * TERMS + LINE]
    cdef float sums[MOST][TOGETHER * LANES]
    cdef const float* w[TOGETHER]
    cdef Py_ssize_t m, n = n0, t, k, kc, N = p.b.size
    cdef bint alone = is_floats(&p.b) and M <= GEMV_ROWS and p.K > LANES
    cdef int j, rows
    while n < n1:
        rows = 1 if alone or n + TOGETHER > n1 else TOGETHER
        memset(sums, 0, M * TOGETHER * LANES * sizeof(float))
        for t in range(blocks_of(p.K, TERMS)):
            k = t * TERMS
            kc = min(<Py_ssize_t>TERMS, p.K - k)
            for j in range(rows):
                if rows > 1 and k + kc < p.K:
                    prefetch_stretch(&p.b, n + j, k + kc, kc)
                elif rows > 1:
                    prefetch_stretch(&p.b, n + j + TOGETHER, 0, kc)
                w[j] = _stretch(&p.b, n + j, k, kc, aligned(buffer) + j * TERMS)
            if rows > 1:
                add_products_of_rows(sums[0], TOGETHER * LANES, x + k, p.K, M, w, kc)
                continue
            for m in range(M):
                add_products(sums[m], x + m * p.K + k, w[0], kc)
        for m in range(M):
            if rows > 1:
                sum_rows(c + m * N + n, sums[m])
            else:
                c[m * N + n] = sum_lanes(sums[m])
        n += rows


cdef inline void dot_rows(const Product* p, Py_ssize_t n0, Py_ssize_t n1) noexcept nogil:
    """Columns n0 .. n1 - 1 of y: the dot products of rows of x with rows of w, MOST at a time."""
    cdef Py_ssize_t i, m, N = p.b.size
    cdef dot_fn dot = dot_codes_of(p.b.type.number, p.a.size)
    if dot != NULL:
        dot(p.c + n0, N, row_of(&p.b, n0), p.b.row_bytes, n1 - n0, p.a.x, p.K, p.a.size, p.K)
    else:
        for i in range(blocks_of(p.a.size, MOST)):
            m = i * MOST
            _dot_rows(p, p.c + m * N, p.a.x + m * p.K, min(p.a.size - m, <Py_ssize_t>MOST), n0, n1)
    for m in range(p.a.size):
        finish_row(p, m * N + n0, n0, n1 - n0)


cdef inline void dot_rows_in_int8(
    const Product* p, const float* rounded, Py_ssize_t n0, Py_ssize_t n1
) noexcept nogil:
    """The same for rows of x in 8 bits; rows of w are read quantized."""
    cdef Py_ssize_t m, M = p.a.size, N = p.b.size
    p.int8(
        p.c + n0, N, row_of(&p.b, n0), p.b.row_bytes, n1 - n0, rounded, rounded_row(p.K), M, p.K
    )
    for m in range(M):
        finish_row(p, m * N + n0, n0, n1 - n0)


cdef inline void _gemv_columns(void* direct, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Direct* d = <const Direct*>direct
    cdef Py_ssize_t i, n0, n1
    for i in range(first, last):
        n0 = i * OUTPUTS
        n1 = min(n0 + OUTPUTS, d.p.b.size)
        if d.p.way == GEMV_INT8:
            dot_rows_in_int8(d.p, d.rounded, n0, n1)
        else:
            dot_rows(d.p, n0, n1)


cdef inline void multiply_gemv(const Product* p, void* workspace, int n_threads) noexcept nogil:
    """GEMV and GEMV_INT8: w is read once, in order. Reading takes most of the time."""
    cdef float* rounded = aligned(workspace)
    cdef Direct d = Direct(p, 0, rounded)
    if p.way == GEMV_INT8:
        round_rows(rounded, p.a.x, p.a.size, p.K, p.int8_unit)
    deal(_gemv_columns, &d, blocks_of(p.b.size, OUTPUTS), n_threads)
