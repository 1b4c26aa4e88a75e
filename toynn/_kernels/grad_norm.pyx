"""The norm of all gradients, and from it the one factor that AdamW applies to them.

    norm  = weight_inverse sqrt(sum_i g[i]^2)
    scale = weight_inverse min(1, max_norm / (norm + 1e-6))

control = [max_norm, weight_inverse]: max_norm <= 0 means no clipping (the min is 1), weight_inverse
is 1 over what the gradients were summed over. scale is NaN where norm is not finite: AdamW then
writes nothing. n elements, float32; outputs never alias inputs. Each block of 16384 elements is
summed in 64 partial sums, the blocks in double: the same for any thread count.

A program may keep sums of the squares of some gradients, tile by tile, which the products that
computed them have left (_squares.pxd). Then it is the others that are read, as if they lay side by
side, and those that have changed since, tile by tile.
Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
"""
from libc.math cimport NAN, isfinite, sqrt
from libc.stdlib cimport free, malloc

from toynn._kernels._common cimport LANES, at1, sum_lanes
from toynn._kernels._entry cimport entry
from toynn._kernels._panels cimport Operand, blocks_of, panels
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels._squares cimport (
    AllSquares, Squares, columns_of, has_tiles, rows_of, sum_tiles,
)
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check

cdef enum:
    BLOCK = 16384  # elements per partial sum
    SUMS = 4 * LANES  # in a block: an addition takes as long as four that need not wait for it


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
    """The squares of elements first .. last - 1, counting only those whose sums nobody keeps."""
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


cdef void _sum_blocks(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* partial = <float*>a.workspace
    cdef const float* g = <const float*>a.t[2]
    cdef const AllSquares* all = <const AllSquares*>a.kept
    cdef Py_ssize_t b, n = a.n[0], others = _others(all, n)
    for b in range(first, last):
        partial[b] = _sum_others(all, g, n, b * BLOCK, min((b + 1) * BLOCK, others))


cdef void _sum_panels(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """The tiles of one gradient again, as its product would sum them."""
    cdef const Squares* its = <const Squares*>a.kept
    cdef Operand rows = rows_of(its.N), columns = columns_of(its.K)
    cdef const float* g = <const float*>a.t[2]
    sum_tiles(its.sums, g + its.first, &rows, &columns, first, last, 0, panels(&columns))


cdef void _add_tiles(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const AllSquares* all = <const AllSquares*>a.kept
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
    return panels(&rows) * panels(&columns)


cdef double _add_up(KernelArgs* a, AllSquares* all) noexcept nogil:
    """The squares of the gradients whose sums are kept; those that have changed, anew."""
    cdef KernelArgs one = a[0]
    cdef Operand rows
    cdef Py_ssize_t i
    cdef double total = 0
    for i in range(all.count):
        if not all.each[i].valid:
            one.kept = &all.each[i]
            rows = rows_of(all.each[i].N)
            parallel_for(_sum_panels, &one, panels(&rows))
            all.each[i].valid = True
    parallel_for(_add_tiles, a, all.count)
    for i in range(all.count):
        total += all.each[i].total
    return total


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* norm = <float*>a.t[0]
    cdef float* scale = <float*>a.t[1]
    cdef const float* partial = <const float*>a.workspace
    cdef const float* control = <const float*>a.t[3]
    cdef Py_ssize_t n = a.n[0]
    cdef AllSquares* all = <AllSquares*>a.kept
    cdef Py_ssize_t b, blocks = blocks_of(_others(all, n), BLOCK)
    cdef float max_norm = control[0], weight_inverse = control[1], clip = 1
    cdef double total = 0
    parallel_for(_sum_blocks, a, blocks)
    for b in range(blocks):
        total += partial[b]
    if all != NULL:
        total += _add_up(a, all)
    norm[0] = weight_inverse * sqrt(total)
    if not max_norm <= 0:  # a NaN too: it must not read as no clipping
        clip = max_norm / (norm[0] + <float>1e-6)
        clip = 1 if clip > 1 else clip
    scale[0] = weight_inverse * clip if isfinite(norm[0]) else NAN


def workspace(str name, Py_ssize_t n, int n_threads=1):
    """Bytes of scratch memory that an entry needs: a sum for each block."""
    return blocks_of(n, BLOCK) * sizeof(float)


def tiles(Py_ssize_t N, Py_ssize_t K):
    """How many sums of squares there are of a gradient (N,K); 0: its product leaves none."""
    return _tiles(N, K) if has_tiles(N, K) else 0


def forward(
    float[::1] norm, float[::1] scale, const float[::1] g, const float[::1] control,
    int n_threads=1, size_t kept=0,
):
    """Overwrite norm (1,) and scale (1,) from g (n,) and control (2,).

    ``kept`` is the address of the sums that are there (AllSquares in _squares.pxd), if any.
    """
    cdef KernelArgs a
    cdef Py_ssize_t n = g.shape[0]
    check(
        "grad_norm.forward", f"g ({n},)", n_threads, norm=(norm, (1,)), scale=(scale, (1,)),
        control=(control, (2,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3] = at1(norm), at1(scale), at1(g), at1(control)
    a.n[0] = n
    a.n_threads = n_threads
    a.kept = <void*>kept
    a.workspace = malloc(workspace("forward", max(n, 1)))
    if a.workspace == NULL:
        raise MemoryError(f"grad_norm.forward: no scratch memory for {n} elements")
    with nogil:
        _forward(&a)
    free(a.workspace)


entries = {
    "forward": entry(_forward, "norm scale g control", sizes="n"),
}
