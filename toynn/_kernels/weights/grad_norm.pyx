"""The norm of all gradients, and from it the one factor that AdamW applies to them.

    norm  = weight_inverse sqrt(sum_i g[i]^2)
    scale = weight_inverse min(1, max_norm / (norm + 1e-6))

control = [max_norm, weight_inverse]. max_norm <= 0 means no clipping (the min is 1). The gradients
g are sums, over tokens for example; weight_inverse, 1 / (number of tokens), turns them into means.
scale is NaN if norm is not finite: AdamW then writes nothing. n elements, float32; outputs never
alias inputs. Each block of 16384 elements is summed in 64 partial sums, and the blocks are added in
double. So the result is the same for any thread count.

The products that computed some gradients may have left sums of their squares, tile by tile, which a
program keeps (_squares.pxd). Then this kernel reads only the other gradients, as one array. If a
gradient with kept sums changed since, its tiles are summed again.
Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
"""
from libc.math cimport NAN, isfinite, sqrt

from toynn._kernels.base._common cimport LANES, sum_lanes
from toynn._kernels.gemm._product cimport Operand, blocks_of
from toynn._kernels.base._parallel cimport deal, parallel_for, part_fn
from toynn._kernels.gemm._squares cimport (
    AllSquares, Squares, columns_of, has_tiles, rows_of, sum_tiles,
)
from toynn._kernels.args.grad_norm cimport Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import countable
# kept: from toynn._kernels.gemm._squares cimport AllSquares

cdef enum:
    BLOCK = 16384  # elements per partial sum
    SUMS = 4 * LANES  # partial sums in a block: four independent additions take as long as one


cdef inline float _sum_squares(const float* g, Py_ssize_t n) noexcept nogil:
    cdef float acc[SUMS]
    cdef float total = 0
    cdef Py_ssize_t i, b, whole = n - n % SUMS
    cdef int k
    for k in range(SUMS):
        acc[k] = 0
    for b in range(n // SUMS):
        for k in range(SUMS):
            acc[k] += g[b * SUMS + k] * g[b * SUMS + k]
    for i in range(whole, n):
        acc[i - whole] += g[i] * g[i]
    for k in range(SUMS // LANES):
        total += sum_lanes(acc + k * LANES)
    return total


cdef float _sum_others(
    const AllSquares* all, const float* g, Py_ssize_t n, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    """Sum the squares of elements first .. last - 1 of all gradients without kept sums."""
    cdef Py_ssize_t i, start = 0, end, passed = 0, count = 0 if all == NULL else all.count
    cdef float total = 0
    for i in range(count + 1):
        end = all.each[i].first if i < count else n
        if first < passed + end - start and passed < last:
            total += _sum_squares(
                g + start + max(first - passed, 0),
                min(last - passed, end - start) - max(first - passed, 0),
            )
        passed += end - start
        if i < count:
            start = end + all.each[i].N * all.each[i].K
    return total


cdef Py_ssize_t _others(const AllSquares* all, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if all != NULL:
        for i in range(all.count):
            n -= all.each[i].N * all.each[i].K
    return n


cdef void _sum_blocks(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* partial = <float*>a.workspace
    cdef const AllSquares* all = a.kept
    cdef Py_ssize_t b, others = _others(all, a.n)
    for b in range(first, last):
        partial[b] = _sum_others(all, a.g, a.n, b * BLOCK, min((b + 1) * BLOCK, others))


cdef struct Gradient:
    const Squares* its
    const float* g


cdef void _sum_panels(void* gradient, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Sum the squares of one gradient's tiles again, as its product would."""
    cdef const Gradient* x = <const Gradient*>gradient
    cdef Operand rows = rows_of(x.its.N), columns = columns_of(x.its.K)
    sum_tiles(x.its.sums, x.g, &rows, &columns, first, last, 0, columns.panels)


cdef void _add_tiles(Forward* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const AllSquares* all = a.kept
    cdef const float* sums
    cdef Py_ssize_t i, j, tiles
    cdef double total[LANES]
    cdef int k
    for i in range(first, last):
        sums = all.each[i].sums
        tiles = _tiles(all.each[i].N, all.each[i].K)
        for k in range(LANES):
            total[k] = 0
        for j in range(tiles // LANES):
            for k in range(LANES):
                total[k] += sums[j * LANES + k]
        for j in range(tiles - tiles % LANES, tiles):
            total[0] += sums[j]
        for k in range(1, LANES):
            total[0] += total[k]
        all.each[i].total = total[0]


cdef inline Py_ssize_t _tiles(Py_ssize_t N, Py_ssize_t K) noexcept nogil:
    cdef Operand rows = rows_of(N), columns = columns_of(K)
    return rows.panels * columns.panels


cdef double _add_up(Forward* a, AllSquares* all) noexcept nogil:
    """Return the sum of squares of gradients with kept sums; renew sums that are not valid."""
    cdef Gradient one
    cdef Operand rows
    cdef Py_ssize_t i
    cdef double total = 0
    for i in range(all.count):
        if not all.each[i].valid:
            one = Gradient(&all.each[i], a.g + all.each[i].first)
            rows = rows_of(all.each[i].N)
            deal(_sum_panels, &one, rows.panels, a.n_threads)
            all.each[i].valid = True
    parallel_for(<part_fn>_add_tiles, a, all.count)
    for i in range(all.count):
        total += all.each[i].total
    return total


cdef void _forward(Forward* a) noexcept nogil:
    cdef const float* partial = <const float*>a.workspace
    cdef AllSquares* all = a.kept
    cdef Py_ssize_t b, blocks = blocks_of(_others(all, a.n), BLOCK)
    cdef float max_norm = a.control[0], weight_inverse = a.control[1], clip = 1
    cdef double total = 0
    parallel_for(<part_fn>_sum_blocks, a, blocks)
    for b in range(blocks):
        total += partial[b]
    if all != NULL:
        total += _add_up(a, all)
    a.norm[0] = weight_inverse * sqrt(total)
    if not max_norm <= 0:  # true for NaN too, which must not mean no clipping
        clip = max_norm / (a.norm[0] + <float>1e-6)
        clip = 1 if clip > 1 else clip
    a.scale[0] = weight_inverse * clip if isfinite(a.norm[0]) else NAN


cdef Py_ssize_t _forward_scratch(Forward* a) noexcept nogil:
    """One partial sum per block."""
    return blocks_of(a.n, BLOCK) * sizeof(float)


def tiles(Py_ssize_t N, Py_ssize_t K):
    """Return how many sums of squares the product of a gradient (N,K) leaves; 0 if none.

    Raises ValueError for a gradient whose bytes cannot be counted.
    """
    countable("grad_norm.tiles", "the gradient", (N, K))
    return _tiles(N, K) if has_tiles(N, K) else 0


forward = entry("norm[1] scale[1] <- g[n] control[2] | kept AllSquares")
