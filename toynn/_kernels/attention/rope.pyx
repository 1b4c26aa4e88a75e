"""RoPE: rotate each pair of channels by an angle that grows with the position.

    angle[n,i] = positions[n] inverse_frequency[i]        c = m cos(angle), s = m sin(angle)
    m[n]       = magnitude (1 + growth ln(1 + floor(positions[n] / span)))
    y[n,h,j]   = x[n,h,j] c - x[n,h,k] s                  dx[n,h,j] =  dy[n,h,j] c + dy[n,h,k] s
    y[n,h,k]   = x[n,h,j] s + x[n,h,k] c                  dx[n,h,k] = -dy[n,h,j] s + dy[n,h,k] c

Pair i of R/2 has the channels j, k = i, i + R/2 (half-split: NeoX, Hugging Face's Llama). If
interleaved, it has j, k = 2i, 2i + 1 (the paper, GGUF's llama). Usually inverse_frequency[i] is
base^(-2i/R). m is 1, except in models that were extended to a longer context. For q, m may grow
with the position there, which sharpens the scores. Only the first R <= D channels of a head and the
first P heads are rotated. The others are copied (y = x, dx = dy), such as v in rows that hold q, k
and v. N rows (B*T flattened), H heads, D channels per head. float32, C-contiguous; positions int32.
In place: y may be x, dx may be dy. dx is overwritten. The angle is a double: in float32 it would be
off by 5e-4 radians at position 8192. Sources: Su et al. 2021, arXiv:2104.09864, section 3.4;
magnitude: Ding et al. 2024 (LongRoPE), arXiv:2402.13753, section 3; growth: Nakanishi 2025,
arXiv:2501.19399, as in Llama 4 and Ministral 3.
"""

from libc.math cimport fabs, floor, log1p
from libc.string cimport memcpy

from toynn._kernels.base.entry cimport entry

cdef enum:
    PAIRS = 64  # cosines and sines kept on the stack, for all heads of a row


cdef inline void _cos_sin(double angle, float* cosine, float* sine) noexcept nogil:
    """Within 2e-7 for |angle| to 2^31: angle = k pi/2 + r with |r| <= pi/4, then Taylor series.

        k mod 4     0       1       2       3
        cosine     cos r  -sin r  -cos r   sin r
        sine       sin r   cos r  -sin r  -cos r
    """
    cdef double magic = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to the nearest integer
    cdef double quarters = (angle * 0.6366197723675814 + magic) - magic
    cdef float r = <float>(angle - quarters * 1.5707963267948966)
    cdef float t = r * r
    cdef float s = <float>(1.0 / 362880.0)
    s = s * t - <float>(1.0 / 5040.0)
    s = s * t + <float>(1.0 / 120.0)
    s = s * t - <float>(1.0 / 6.0)
    s = s * t * r + r
    cdef float c = <float>(-1.0 / 3628800.0)
    c = c * t + <float>(1.0 / 40320.0)
    c = c * t - <float>(1.0 / 720.0)
    c = c * t + <float>(1.0 / 24.0)
    c = c * t - <float>0.5
    c = c * t + <float>1.0
    cdef int k = <int>quarters
    cdef float across = s if k & 1 else c
    cdef float up = c if k & 1 else s
    cosine[0] = -across if (k + 1) & 2 else across
    sine[0] = -up if k & 2 else up


cdef inline void _rotate_halves(
    float* y, const float* x, const float* c, const float* s, Py_ssize_t half, Py_ssize_t width
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float a, b
    for i in range(width):
        a, b = x[i], x[half + i]
        y[i] = a * c[i] - b * s[i]
        y[half + i] = a * s[i] + b * c[i]


cdef inline void _rotate_interleaved(
    float* y, const float* x, const float* c, const float* s, Py_ssize_t width
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float a, b
    for i in range(width):
        a, b = x[2 * i], x[2 * i + 1]
        y[2 * i] = a * c[i] - b * s[i]
        y[2 * i + 1] = a * s[i] + b * c[i]


cdef inline void _row(
    float* y, const float* x, double position, const float* inverse_frequency,
    Py_ssize_t H, Py_ssize_t D, Py_ssize_t R, Py_ssize_t P, bint interleaved, float magnitude,
    float growth, Py_ssize_t span,
) noexcept nogil:
    """All heads of one row; a negative position rotates back."""
    cdef float c[PAIRS]
    cdef float s[PAIRS]
    cdef Py_ssize_t b, i, p, h, width, half = R // 2
    if growth != 0:
        magnitude *= <float>(1 + growth * log1p(floor(fabs(position) / span)))
    for b in range((half + PAIRS - 1) // PAIRS):
        i = b * PAIRS
        width = min(PAIRS, half - i)
        for p in range(width):
            _cos_sin(position * inverse_frequency[i + p], &c[p], &s[p])
            c[p] *= magnitude
            s[p] *= magnitude
        for h in range(P):
            if interleaved:
                _rotate_interleaved(y + h * D + 2 * i, x + h * D + 2 * i, c, s, width)
            else:
                _rotate_halves(y + h * D + i, x + h * D + i, c, s, half, width)
    if y == x:
        return
    if R < D:
        for h in range(P):
            memcpy(y + h * D + R, x + h * D + R, (D - R) * sizeof(float))
    memcpy(y + P * D, x + P * D, (H - P) * D * sizeof(float))


cdef inline void forward_row(
    float* y, const float* x, int positions, const float* inverse_frequency, Py_ssize_t H,
    Py_ssize_t D, Py_ssize_t R, Py_ssize_t P, bint interleaved, float magnitude, float growth,
    Py_ssize_t span,
) noexcept nogil:
    _row(y, x, positions, inverse_frequency, H, D, R, P, interleaved, magnitude, growth, span)


cdef inline void backward_row(
    float* dx, const float* dy, int positions, const float* inverse_frequency, Py_ssize_t H,
    Py_ssize_t D, Py_ssize_t R, Py_ssize_t P, bint interleaved, float magnitude, float growth,
    Py_ssize_t span,
) noexcept nogil:
    _row(
        dx, dy, -<double>positions, inverse_frequency, H, D, R, P, interleaved, magnitude, growth,
        span,
    )


def _checked(where, arrays, sizes, options):
    H, D, R, P, span = (sizes[name] for name in (*"HDRP", "span"))
    if not (0 <= P <= H and R <= D and span > 0):
        raise ValueError(
            f"{where}: needs P in 0..{H}, R/2 in 0..{D // 2} and span above 0; got {P}, "
            f"inverse_frequency {arrays['inverse_frequency'].shape} and {span}"
        )


forward = entry(
    "rows N: y[N H D]=x <- x[N H D] i32 positions[N] inverse_frequency[R//2] "
    "| P=H interleaved=0 span=1 magnitude=1.0 growth=0.0",
    _checked,
)
backward = entry(
    "rows N: dx[N H D]=dy <- dy[N H D] i32 positions[N] inverse_frequency[R//2] "
    "| P=H interleaved=0 span=1 magnitude=1.0 growth=0.0",
    _checked,
)
