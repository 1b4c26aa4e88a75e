"""The gated delta rule, row by row, for WIDE columns of a head's state: see delta.pyx.

The state is a memory: a matrix of D rows and E columns. A key has D numbers. Each column stores one
number of the values under all keys, and no column reads another. So a task takes WIDE columns,
which stay in L1 while it goes through the rows of a sequence:

    load    copies WIDE columns of a stored state, whose rows are E numbers apart, to a contiguous
            array. Columns that the state does not have are 0 there, and stay 0.
    step    takes one row (a token). First all that the state stores decays, by the row's decay.
            The state is asked for the value under the row's key. The share b of the difference to
            the row's own value is written under that key. So the new value replaces a part of the
            old one. The output is the value that the state then has under the row's query.
    store   copies the columns that exist back to a stored state.

forward starts with zeros where a sequence begins, steps through all rows, and stores the state at
every L-th row. cached loads the state of the rows before, steps, and stores. backward loads each
stored state, from the last to the first. It steps through the state's L rows and keeps the state
after each; then it goes back over these rows (row_backward). In symbols, for one row, before and
after the states (D, WIDE):

    after = decay before            u = b (v - after^T k)
    after = after + k u^T           y = after^T q
"""
from libc.math cimport expf, sqrtf
from libc.string cimport memset

from toynn._kernels.base._common cimport LANES, dot_, sigmoid_, sum_lanes
from toynn._kernels.gemm._product cimport blocks_of

cdef enum:
    WIDE = 32   # columns of a state that are computed together: with 128 rows they fit into L1
    MOST = 256  # most rows of a state

# Where the parts of a row of x begin that a head reads.
cdef struct Head:
    Py_ssize_t q, k, v

# What a head reads of a row: the query (scaled) and the key, both normalised; and v, from the first
# column of a task on. ``decay`` is the share of the state that stays, b the share that is written.
cdef struct Row:
    float[MOST] q
    float[MOST] k
    const float* v
    float decay, b


cdef inline Py_ssize_t tasks(Py_ssize_t heads, Py_ssize_t E) noexcept nogil:
    return heads * blocks_of(E, WIDE)


cdef inline Head head_of(
    Py_ssize_t K, Py_ssize_t V, Py_ssize_t D, Py_ssize_t E, Py_ssize_t grouped, Py_ssize_t h
) noexcept nogil:
    """Where head h of v, and the head of q and k that it reads, begin in a row."""
    cdef Py_ssize_t q = (h // (V // K) if grouped else h % K) * D
    return Head(q, K * D + q, 2 * K * D + h * E)


cdef inline void _normalise(float* y, const float* x, Py_ssize_t D, float scale) noexcept nogil:
    """y = x scale / sqrt(x . x + eps)."""
    cdef float r = scale / sqrtf(dot_(x, x, D) + <float>1e-6)
    cdef Py_ssize_t i
    for i in range(D):
        y[i] = x[i] * r


cdef inline void read_row(
    Row* row, const float* x, const Head* s, Py_ssize_t D, Py_ssize_t e0, float g, float c
) noexcept nogil:
    """The row x as a head sees it, for columns e0 .. of its state."""
    _normalise(row.q, x + s.q, D, 1 / sqrtf(D))
    _normalise(row.k, x + s.k, D, 1)
    row.v, row.decay, row.b = x + s.v + e0, expf(g), sigmoid_(c)


cdef inline bint begins(const int* first, Py_ssize_t row, Py_ssize_t T) noexcept nogil:
    """Whether a row is the first one of its sequence or example."""
    return first[row] == row if first != NULL else row % T == 0


cdef inline void load(
    float* y, const float* x, Py_ssize_t D, Py_ssize_t E, Py_ssize_t width
) noexcept nogil:
    """Copy ``width`` columns of a state from x on to y (D, WIDE); the other columns are 0."""
    cdef Py_ssize_t i, e
    memset(y, 0, D * WIDE * sizeof(float))
    for i in range(D):
        for e in range(width):
            y[i * WIDE + e] = x[i * E + e]


cdef inline void store(
    float* y, const float* x, Py_ssize_t D, Py_ssize_t E, Py_ssize_t width
) noexcept nogil:
    """Copy ``width`` columns of x (D, WIDE) to a state, from y on."""
    cdef Py_ssize_t i, e
    for i in range(D):
        for e in range(width):
            y[i * E + e] = x[i * WIDE + e]


cdef inline void step(
    float* y, float* after, const float* before, const Row* row, Py_ssize_t D, Py_ssize_t width
) noexcept nogil:
    """Take one row: overwrite after (D, WIDE), which may be before, and y unless it is NULL."""
    cdef float[WIDE] u, o
    cdef float kept
    cdef Py_ssize_t i, e
    for e in range(WIDE):
        u[e] = o[e] = 0
    for i in range(D):
        for e in range(WIDE):
            kept = before[i * WIDE + e] * row.decay
            after[i * WIDE + e] = kept
            u[e] += kept * row.k[i]
    for e in range(WIDE):
        u[e] = row.b * ((row.v[e] if e < width else 0) - u[e])
    for i in range(D):
        for e in range(WIDE):
            kept = after[i * WIDE + e] + row.k[i] * u[e]
            after[i * WIDE + e] = kept
            o[e] += kept * row.q[i]
    if y != NULL:
        for e in range(width):
            y[e] = o[e]


cdef inline float row_backward(
    float* dq, float* dk, float* dv, float* db, float* R, const float* dy, const float* after,
    const float* before, const Row* row, Py_ssize_t D, Py_ssize_t width,
) noexcept nogil:
    """Add to dq, dk and db, overwrite dv, turn R into R of the row before; return <R, P>."""
    cdef float[WIDE] out, du, rest, u, dm
    cdef float[LANES] lanes, more, total
    cdef float p, d, decay = row.decay, b = row.b
    cdef Py_ssize_t i, e, j
    for e in range(WIDE):
        out[e] = dy[e] if e < width else 0
        du[e] = rest[e] = 0
    for i in range(D):
        for e in range(WIDE):
            d = R[i * WIDE + e] + row.q[i] * out[e]
            R[i * WIDE + e] = d
            du[e] += d * row.k[i]
            rest[e] += before[i * WIDE + e] * row.k[i]
    for e in range(WIDE):
        rest[e] = (row.v[e] if e < width else 0) - decay * rest[e]
        u[e] = b * rest[e]
        dm[e] = -b * du[e]
    for e in range(width):
        dv[e] = b * du[e]
    for j in range(LANES):
        lanes[j] = total[j] = 0
    for e in range(WIDE // LANES):
        for j in range(LANES):
            lanes[j] += du[e * LANES + j] * rest[e * LANES + j]
    db[0] += sum_lanes(lanes)
    for i in range(D):
        for j in range(LANES):
            lanes[j] = more[j] = 0
        for e in range(WIDE // LANES):
            for j in range(LANES):
                p = decay * before[i * WIDE + e * LANES + j]
                d = R[i * WIDE + e * LANES + j]
                lanes[j] += after[i * WIDE + e * LANES + j] * out[e * LANES + j]
                more[j] += d * u[e * LANES + j] + p * dm[e * LANES + j]
                d += row.k[i] * dm[e * LANES + j]
                total[j] += d * p
                R[i * WIDE + e * LANES + j] = decay * d
        dq[i] += sum_lanes(lanes)
        dk[i] += sum_lanes(more)
    return sum_lanes(total)


cdef inline void norm_backward(
    float* d, const float* x, Py_ssize_t D, float scale
) noexcept nogil:
    """Turn d, the gradient of x scale / sqrt(x . x + eps), into the gradient of x."""
    cdef float r = 1 / sqrtf(dot_(x, x, D) + <float>1e-6)
    cdef float along = dot_(x, d, D) * r * r
    cdef Py_ssize_t i
    for i in range(D):
        d[i] = scale * r * (d[i] - x[i] * along)
