"""One block of attention: BLOCK queries against BLOCK keys, forward and backward.

The formulas are at the top of attention.pyx. Pointers are at row 0 of the sequence and at the first
column of the head; i is the first query of a block and j its first key. Keys of a cache are
transposed within blocks: cached_attention.pyx says how, and why.
"""
from libc.math cimport INFINITY, logf

from toynn._kernels._common cimport LANES, exp_, max_, sum_
from toynn._kernels._gemm cimport multiply
from toynn._kernels._panels cimport Operand, blocks_of, floats_at

cdef enum:
    BLOCK = 64  # queries, and keys, per block: two blocks of scores take 40 KB
    TAIL = 16   # so many at the end, or fewer, are no block of their own
    WIDTH = BLOCK + TAIL  # floats from one row of a block of scores to the next

cdef struct Sizes:
    Py_ssize_t B, T, H, KV, D
    Py_ssize_t S     # keys
    Py_ssize_t past  # keys before that of the first query; causal only
    Py_ssize_t ldq, ldk, ldv, ldo  # floats from one row to the next
    bint causal
    bint cached  # k[j,d] is at j // BLOCK * BLOCK * D + d * BLOCK + j % BLOCK, and ldk = D
    float scale


cdef inline Py_ssize_t row_floats(const float[:, :] x) except? -1:
    """Floats from one row of a door's argument to the next."""
    if x.shape[1] > 1 and x.strides[1] != sizeof(float) or x.strides[0] % sizeof(float):
        raise ValueError("attention: columns of q, k, v or a gradient are not C-contiguous")
    return x.strides[0] // <Py_ssize_t>sizeof(float)


cdef inline void* at_row(const float[:, :] x) noexcept:
    """The address of its first row; NULL if it is empty."""
    return <void*>&x[0, 0] if x.shape[0] and x.shape[1] else NULL


cdef inline Py_ssize_t tail(const Sizes* s) noexcept nogil:
    """Rows by which a last block may be longer than BLOCK.

    None if causal: there the sums over keys are cut alike whatever comes after them.
    """
    return 0 if s.causal or s.cached else TAIL


cdef inline Py_ssize_t block_count(const Sizes* s, Py_ssize_t rows) noexcept nogil:
    return max(1, blocks_of(rows - tail(s), BLOCK))


cdef inline Py_ssize_t block_size(const Sizes* s, Py_ssize_t i, Py_ssize_t rows) noexcept nogil:
    """Rows of the block that begins at i, of ``rows`` in all."""
    return rows - i if rows - i <= BLOCK + tail(s) else BLOCK


cdef inline Py_ssize_t _whole(Py_ssize_t columns) noexcept nogil:
    """Columns rounded up to LANES, so that loops over them have no scalar rest."""
    return blocks_of(columns, LANES) * LANES


cdef inline void _scale_row(float* x, float factor, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(n):
        x[c] *= factor


cdef inline void _scores(
    float* p, const Sizes* s, const float* q, const float* k,
    Py_ssize_t i, Py_ssize_t rows, Py_ssize_t j, Py_ssize_t columns,
) noexcept nogil:
    """p = scale q . k for queries i .. and keys j ..; -infinity for keys not seen."""
    cdef Operand a = floats_at(q + i * s.ldq, rows, s.ldq, 1, True)
    cdef Operand b = floats_at(
        k + j * s.ldk, columns, 1 if s.cached else s.ldk, BLOCK if s.cached else 1, False
    )
    cdef Py_ssize_t r, c, seen = columns
    multiply(p, WIDTH, &a, &b, s.D, False)
    for r in range(rows):
        if s.causal:
            seen = max(0, min(columns, s.past + i + r + 1 - j))
        _scale_row(p + r * WIDTH, s.scale, columns)
        for c in range(seen, _whole(columns)):
            p[r * WIDTH + c] = -INFINITY


cdef inline void _weights_row(float* p, Py_ssize_t width, float shift) noexcept nogil:
    """p = exp(p - shift)."""
    cdef Py_ssize_t c
    for c in range(width):
        p[c] = exp_(p[c] - shift)


cdef inline void forward_block(
    float* o, float* lse, const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i,
) noexcept nogil:
    """Overwrite o and lse of queries i .. i + BLOCK - 1 from all keys."""
    cdef float p[WIDTH * WIDTH]
    cdef float most[WIDTH]   # running maximum of the scaled scores of a row
    cdef float total[WIDTH]  # running sum of exp(score - most)
    cdef Py_ssize_t r, t, j, columns, width, rows = block_size(s, i, s.T)
    cdef Py_ssize_t keys = s.past + i + rows if s.causal else s.S
    cdef float before
    cdef Operand a, b
    for t in range(block_count(s, keys)):
        j = t * BLOCK
        columns = block_size(s, j, keys)
        width = _whole(columns)
        _scores(p, s, q, k, i, rows, j, columns)
        for r in range(rows):
            before = most[r] if t else <float>-INFINITY
            most[r] = max(before, max_(p + r * WIDTH, width))
            _weights_row(p + r * WIDTH, width, most[r])
            if t == 0:
                total[r] = sum_(p + r * WIDTH, width)
            else:
                before = exp_(before - most[r])
                total[r] = total[r] * before + sum_(p + r * WIDTH, width)
                _scale_row(o + (i + r) * s.ldo, before, s.D)
        a = floats_at(&p[0], rows, WIDTH, 1, True)
        b = floats_at(v + j * s.ldv, s.D, 1, s.ldv, False)
        multiply(o + i * s.ldo, s.ldo, &a, &b, columns, t > 0)
    for r in range(rows):
        _scale_row(o + (i + r) * s.ldo, 1 / total[r], s.D)
        lse[i + r] = most[r] + logf(total[r])


cdef inline void backward_block(
    float* dq, float* dk, float* dv, const float* delta, const float* do, const float* lse,
    const float* q, const float* k, const float* v, const Sizes* s,
    Py_ssize_t i, Py_ssize_t j, bint add_to_keys,
) noexcept nogil:
    """What queries i .. and keys j .. give to dq, dk and dv; the first keys overwrite dq."""
    cdef float p[WIDTH * WIDTH]
    cdef float ds[WIDTH * WIDTH]
    cdef Py_ssize_t r, c, rows = block_size(s, i, s.T), columns = block_size(s, j, s.T)
    cdef Operand a, b
    _scores(p, s, q, k, i, rows, j, columns)
    # do . v, then ds
    a = floats_at(do + i * s.ldo, rows, s.ldo, 1, True)
    b = floats_at(v + j * s.ldv, columns, s.ldv, 1, False)
    multiply(ds, WIDTH, &a, &b, s.D, False)
    for r in range(rows):
        _weights_row(p + r * WIDTH, _whole(columns), lse[i + r])
        for c in range(columns):
            ds[r * WIDTH + c] = s.scale * p[r * WIDTH + c] * (ds[r * WIDTH + c] - delta[i + r])
    # dv += p^T do
    a = floats_at(&p[0], columns, 1, WIDTH, True)
    b = floats_at(do + i * s.ldo, s.D, 1, s.ldo, False)
    multiply(dv + j * s.ldv, s.ldv, &a, &b, rows, add_to_keys)
    # dk += ds^T q
    a = floats_at(&ds[0], columns, 1, WIDTH, True)
    b = floats_at(q + i * s.ldq, s.D, 1, s.ldq, False)
    multiply(dk + j * s.ldk, s.ldk, &a, &b, rows, add_to_keys)
    # dq += ds k
    a = floats_at(&ds[0], rows, WIDTH, 1, True)
    b = floats_at(k + j * s.ldk, s.D, 1, s.ldk, False)
    multiply(dq + i * s.ldq, s.ldq, &a, &b, columns, j > 0)
