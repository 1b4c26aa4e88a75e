"""Shared by kernels: flushing of denormals, vectorised exp, log, tanh and erf, ordered sums.

All functions are inline and branch-free, so that the compiler turns a loop that calls them into
vector code. All but max_ return NaN for NaN.
"""
from libc.math cimport INFINITY, NAN

cdef extern from "fpstate.h" nogil:
    ctypedef unsigned long fpstate "tn_fpstate"
    fpstate flush_denormals "tn_flush_denormals" () noexcept
    void restore_fpstate "tn_restore_fpstate" (fpstate before) noexcept

cdef extern from "unknown.h" nogil:
    float unknown "tn_unknown" (float x) noexcept

cdef enum:
    LANES = 16  # partial sums of a reduction: one AVX-512 register, two of AVX2, four of SSE

cdef union _Bits:
    float f
    unsigned int i


cdef inline float exp_(float x) noexcept nogil:
    """e^x within 2 units in the last place; 0 below -86.99, infinity above 88.72.

    x = n ln 2 + r with |r| <= ln 2 / 2. e^r is its Taylor series to r^7: the error is under 1e-8.
    p is 2 e^r and the power is 2^(n-1), so that no power is infinite and the smallest is 0.
    """
    cdef float magic = 12582912.0  # 1.5 * 2^23: adding it rounds to the nearest integer
    cdef float low = unknown(-87.5), high = unknown(89.0)  # beyond them: 0, or infinity
    cdef float clamped = high if high < x else x
    clamped = low if low > clamped else clamped
    cdef _Bits power
    power.f = clamped * <float>1.44269504 + magic
    cdef float n = power.f - magic
    cdef float r = (clamped - n * <float>0.693359375) - n * <float>-2.12194440e-4
    cdef float p = <float>(2.0 / 5040.0)
    p = p * r + <float>(2.0 / 720.0)
    p = p * r + <float>(2.0 / 120.0)
    p = p * r + <float>(2.0 / 24.0)
    p = p * r + <float>(2.0 / 6.0)
    p = p * r + <float>1.0
    p = p * (r * r) + (r + r) + <float>2.0
    power.i = (power.i << 23) + (<unsigned int>126 << 23)  # n is in the last bits of the sum
    return p * power.f


cdef inline float log_(float x) noexcept nogil:
    """ln x within 2 units in the last place; -infinity for 0 and subnormals, NaN below 0.

    x = 2^n m with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh s with s = (m - 1) / (m + 1). The
    series of artanh to s^9 has an error under 2e-9 of ln m. f - .. keeps m - 1, which is exact.
    """
    cdef _Bits bits
    cdef float zero = 0, nan = NAN, infinite = INFINITY
    bits.f = x
    cdef int power = <int>(bits.i - <unsigned int>0x3f3504f3) >> 23  # the bits of 1/sqrt 2
    bits.i -= <unsigned int>power << 23
    cdef float f = bits.f - 1
    cdef float s = f / (2 + f)
    cdef float z = s * s
    cdef float p = <float>(2.0 / 9.0)
    p = p * z + <float>(2.0 / 7.0)
    p = p * z + <float>(2.0 / 5.0)
    p = p * z + <float>(2.0 / 3.0)
    cdef float half = <float>0.5 * f * f
    cdef float n = <float>power
    cdef float low = s * (half + z * p) + n * <float>-2.12194440e-4
    cdef float y = n * <float>0.693359375 - ((half - low) - f)
    y = y if x < infinite else x
    return y if x > zero else (-infinite if x == zero else nan)


cdef inline float sigmoid_(float x) noexcept nogil:
    """1 / (1 + e^-x)."""
    return <float>1.0 / (<float>1.0 + exp_(-x))


cdef inline float sigmoid_slope_(float x, float* slope) noexcept nogil:
    """s = 1 / (1 + e^-x), and its slope s (1 - s) without cancellation in 1 - s for large x."""
    cdef float e = exp_(-x if x > 0 else x)  # e^-|x|: never infinite
    cdef float q = <float>1.0 / (<float>1.0 + e)
    slope[0] = e * q * q
    return q if x > 0 else e * q


cdef inline float tanh_(float x, float* slope) noexcept nogil:
    """tanh(x) within 2 units in the last place, and its slope 1 - tanh^2 without cancellation.

    With e = e^(-2|x|), tanh |x| is (1 - e) / (1 + e) and the slope is 4 e / (1 + e)^2. Below 0.625,
    where 1 - e loses digits, tanh x is x + x^3 p(x^2). p is the minimax polynomial of degree 4: its
    largest relative error is 4.4e-9.
    """
    cdef float size = -x if x < 0 else x
    cdef float e = exp_(<float>-2.0 * size)
    cdef float q = <float>1.0 / (<float>1.0 + e)
    cdef float far = (<float>1.0 - e) * q
    cdef float t = x * x
    cdef float p = <float>-5.7049962e-03
    p = p * t + <float>2.0639095e-02
    p = p * t - <float>5.3739717e-02
    p = p * t + <float>1.3331442e-01
    p = p * t - <float>3.3333282e-01
    cdef float near = x + x * t * p
    slope[0] = <float>4.0 * e * q * q
    far = -far if x < 0 else far
    return near if size < <float>0.625 else far


cdef inline float erf_(float x) noexcept nogil:
    """erf(x) within 5 units in the last place.

    x p(x^2) / q(x^2) on |x| <= 3.95; beyond that, erf rounds to 1 in float32. p and q are the
    minimax polynomials of degree 5: their largest relative error is 2.1e-8 (Chebyshev basis,
    Lawson weights).
    """
    cdef float edge = 3.95, one = 1.0
    cdef float t = x * x
    cdef float p = <float>2.0257353e-06
    p = p * t + <float>2.8466540e-04
    p = p * t + <float>3.8078964e-03
    p = p * t + <float>5.2874626e-02
    p = p * t + <float>1.9154646e-01
    p = p * t + <float>1.1283791e+00
    cdef float q = <float>3.7828814e-05
    q = q * t + <float>1.1706297e-03
    q = q * t + <float>1.5054591e-02
    q = q * t + <float>1.1455775e-01
    q = q * t + <float>5.0308629e-01
    q = q * t + <float>1.0
    cdef float within = x * p / q
    return one if x > edge else (-one if x < -edge else within)


cdef inline float sum_lanes(const float* acc) noexcept nogil:
    """Add LANES partial sums pairwise, in the same order at every ISA level."""
    cdef float s[4]
    cdef int k
    for k in range(4):
        s[k] = (acc[k] + acc[k + 8]) + (acc[k + 4] + acc[k + 12])
    return (s[0] + s[2]) + (s[1] + s[3])


cdef inline float sum_(const float* x, Py_ssize_t C) noexcept nogil:
    """sum_c x[c], in LANES partial sums."""
    cdef float acc[LANES]
    cdef Py_ssize_t c, b, whole = C - C % LANES
    cdef int k
    for k in range(LANES):
        acc[k] = 0
    for b in range(C // LANES):
        for k in range(LANES):
            acc[k] += x[b * LANES + k]
    for c in range(whole, C):
        acc[c - whole] += x[c]
    return sum_lanes(acc)


cdef inline void add_products(
    float* acc, const float* x, const float* y, Py_ssize_t C
) noexcept nogil:
    """acc[c % LANES] += x[c] y[c], c ascending."""
    cdef float sums[LANES]
    cdef Py_ssize_t c, b, whole = C - C % LANES
    cdef int k
    for k in range(LANES):
        sums[k] = acc[k]
    for b in range(C // LANES):
        for k in range(LANES):
            sums[k] += x[b * LANES + k] * y[b * LANES + k]
    for c in range(whole, C):
        sums[c - whole] += x[c] * y[c]
    for k in range(LANES):
        acc[k] = sums[k]


cdef inline float dot_(const float* x, const float* y, Py_ssize_t C) noexcept nogil:
    """sum_c x[c] y[c], in LANES partial sums."""
    cdef float acc[LANES]
    cdef int k
    for k in range(LANES):
        acc[k] = 0
    add_products(acc, x, y, C)
    return sum_lanes(acc)


cdef inline float mean_(float total, Py_ssize_t C) noexcept nogil:
    """total / C. The mean of an empty row is 0: what a norm saves for it is a number, not NaN."""
    return total / max(C, 1)


cdef inline float max_(const float* x, Py_ssize_t C) noexcept nogil:
    """max_c x[c], in LANES partial maxima; -infinity if C is 0. NaN is ignored."""
    cdef float acc[LANES]
    cdef float most = -INFINITY
    cdef Py_ssize_t c, b, whole = C - C % LANES
    cdef int k
    for k in range(LANES):
        acc[k] = -INFINITY
    for b in range(C // LANES):
        for k in range(LANES):
            acc[k] = x[b * LANES + k] if x[b * LANES + k] > acc[k] else acc[k]
    for c in range(whole, C):
        most = x[c] if x[c] > most else most
    for k in range(LANES):
        most = acc[k] if acc[k] > most else most
    return most
