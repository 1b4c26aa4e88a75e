"""The gated delta rule, row by row, for WIDE columns of a head's state: see delta.pyx."""
from libc.math cimport sqrtf
from libc.string cimport memset

from toynn._kernels._common cimport LANES, dot_, sum_lanes

cdef enum:
    WIDE = 32   # columns of a state that are computed together: of 128 rows, what fits L1
    MOST = 256  # rows of a state

# Where the parts of a row of x stand that a head reads.
cdef struct Head:
    Py_ssize_t q, k, v


cdef inline Head head_of(
    Py_ssize_t K, Py_ssize_t D, Py_ssize_t E, Py_ssize_t h
) noexcept nogil:
    """Head h of v, and the one of q and k that it reads."""
    cdef Head s
    s.q = h % K * D
    s.k = K * D + s.q
    s.v = 2 * K * D + h * E
    return s


cdef inline float normalised(float* y, const float* x, Py_ssize_t D, float scale) noexcept nogil:
    """y = x scale / sqrt(x . x + eps); return what x was multiplied by."""
    cdef float r = scale / sqrtf(dot_(x, x, D) + <float>1e-6)
    cdef Py_ssize_t i
    for i in range(D):
        y[i] = x[i] * r
    return r


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
    float* y, float* after, const float* before, const float* q, const float* k, const float* v,
    float decay, float b, Py_ssize_t D, Py_ssize_t width,
) noexcept nogil:
    """The states (D, WIDE) after a row, which may be where those before it are; y unless NULL."""
    cdef float u[WIDE]
    cdef float o[WIDE]
    cdef float kept
    cdef Py_ssize_t i, e
    for e in range(WIDE):
        u[e] = 0
        o[e] = 0
    for i in range(D):
        for e in range(WIDE):
            kept = before[i * WIDE + e] * decay
            after[i * WIDE + e] = kept
            u[e] += kept * k[i]
    for e in range(WIDE):
        u[e] = b * ((v[e] if e < width else 0) - u[e])
    for i in range(D):
        for e in range(WIDE):
            kept = after[i * WIDE + e] + k[i] * u[e]
            after[i * WIDE + e] = kept
            o[e] += kept * q[i]
    if y != NULL:
        for e in range(width):
            y[e] = o[e]


cdef inline float row_backward(
    float* dq, float* dk, float* dv, float* db, float* R, const float* dy, const float* after,
    const float* before, const float* q, const float* k, const float* v, float decay, float b,
    Py_ssize_t D, Py_ssize_t width,
) noexcept nogil:
    """Add to dq, dk and db, overwrite dv, turn R into that of the row before; return <R, P>."""
    cdef float out[WIDE]
    cdef float du[WIDE]
    cdef float rest[WIDE]
    cdef float u[WIDE]
    cdef float dm[WIDE]
    cdef float lanes[LANES]
    cdef float more[LANES]
    cdef float total[LANES]
    cdef float p, d
    cdef Py_ssize_t i, e, j
    for e in range(WIDE):
        out[e] = dy[e] if e < width else 0
        du[e] = 0
        rest[e] = 0
    for i in range(D):
        for e in range(WIDE):
            d = R[i * WIDE + e] + q[i] * out[e]
            R[i * WIDE + e] = d
            du[e] += d * k[i]
            rest[e] += before[i * WIDE + e] * k[i]
    for e in range(WIDE):
        rest[e] = (v[e] if e < width else 0) - decay * rest[e]
        u[e] = b * rest[e]
        dm[e] = -b * du[e]
    for e in range(width):
        dv[e] = b * du[e]
    for j in range(LANES):
        lanes[j] = 0
        total[j] = 0
    for e in range(WIDE // LANES):
        for j in range(LANES):
            lanes[j] += du[e * LANES + j] * rest[e * LANES + j]
    db[0] += sum_lanes(lanes)
    for i in range(D):
        for j in range(LANES):
            lanes[j] = 0
            more[j] = 0
        for e in range(WIDE // LANES):
            for j in range(LANES):
                p = decay * before[i * WIDE + e * LANES + j]
                d = R[i * WIDE + e * LANES + j]
                lanes[j] += after[i * WIDE + e * LANES + j] * out[e * LANES + j]
                more[j] += d * u[e * LANES + j] + p * dm[e * LANES + j]
                d += k[i] * dm[e * LANES + j]
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
