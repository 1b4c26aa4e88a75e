"""The gated delta rule, row by row, for WIDE columns of a head's state: see delta.pyx.

The state is a memory: a matrix of D rows and E columns. A key has D numbers. Each column stores one
number of the values under all keys, and no column reads another. So a task takes WIDE columns,
which stay in L1 while it goes through the rows of a sequence:

    load    copies WIDE columns of a stored state, whose rows are E numbers apart, to where they
            lie side by side. Columns that the state does not have are 0 there, and stay 0.
    step    takes one row (a token). All that the state knows fades, by the row's decay. The state
            is asked what it has under the row's key. A part b of what the row's value differs by
            is written under that key: the old value is unlearned as the new one is learned. Then
            the state is asked what it has under the row's query: that is the output.
    store   copies the columns that exist back to a stored state.

forward starts with zeros where a sequence begins, steps through all rows, and stores the state at
every L-th row. cached loads the state of the rows before, steps, and stores. backward loads each
stored state, the last one first, steps through its L rows and keeps what each leaves, then goes
back over these rows (row_backward). In symbols, for one row, before and after the states (D, WIDE):

    after = decay before            u = b (v - after^T k)
    after = after + k u^T           y = after^T q
"""
from libc.math cimport expf, sqrtf
from libc.string cimport memset

from toynn._kernels._common cimport LANES, dot_, sigmoid_, sum_lanes
from toynn._kernels.gemm._panels cimport blocks_of

cdef enum:
    WIDE = 32   # columns of a state that are computed together: of 128 rows, what fits L1
    MOST = 256  # rows of a state

# Where the parts of a row of x stand that a head reads.
cdef struct Head:
    Py_ssize_t q, k, v

# What a row gives to a head: query and key of length 1, but for the query's scale; v from its
# first column on; how much of the state stays, and of v is learned.
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
    """Head h of v, and the one of q and k that it reads."""
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
    """Whether no row of its sequence is before a row."""
    return first[row] == row if first != NULL else row % T == 0


cdef inline void load(
    float* y, const float* x, Py_ssize_t D, Py_ssize_t E, Py_ssize_t width
) noexcept nogil:
    """y (D, WIDE) from columns of a state, of which x is the first; zeros beside them."""
    cdef Py_ssize_t i, e
    memset(y, 0, D * WIDE * sizeof(float))
    for i in range(D):
        for e in range(width):
            y[i * WIDE + e] = x[i * E + e]


cdef inline void store(
    float* y, const float* x, Py_ssize_t D, Py_ssize_t E, Py_ssize_t width
) noexcept nogil:
    """The columns of y, whose first y is, from x (D, WIDE)."""
    cdef Py_ssize_t i, e
    for i in range(D):
        for e in range(width):
            y[i * E + e] = x[i * WIDE + e]


cdef inline void step(
    float* y, float* after, const float* before, const Row* row, Py_ssize_t D, Py_ssize_t width
) noexcept nogil:
    """The states (D, WIDE) after a row, which may be where those before it are; y unless NULL."""
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
    """Add to dq, dk and db, overwrite dv, turn R into that of the row before; return <R, P>."""
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
    """Turn the gradient of x scale / sqrt(x . x + eps) into that of x."""
    cdef float r = 1 / sqrtf(dot_(x, x, D) + <float>1e-6)
    cdef float along = dot_(x, d, D) * r * r
    cdef Py_ssize_t i
    for i in range(D):
        d[i] = scale * r * (d[i] - x[i] * along)
