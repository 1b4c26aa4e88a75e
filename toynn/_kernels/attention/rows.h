/* Rows of scores: their maxima, and their weights with their sums. A compiler may not reorder a sum of
   floats, and does not vectorise a maximum in this fixed order. So lanes are written out here. */
#ifndef TOYNN_ROWS_H
#define TOYNN_ROWS_H

#include <float.h>
#include <math.h>
#include "gemm.h"
#include "tiles.h"
#if TN_V >= 8
#include <immintrin.h>
#endif

/* Queries of a strip: see _visible.pxd. A step of tiles has 32 rows and 32 terms. */
#define TN_STRIP (TN_HAS_TILES ? 32 : 16)

#ifdef TN_SHUFFLES
#define TN_HAS_WEIGHTS 1

typedef int tn_bits __attribute__((vector_size(4 * TN_V)));
typedef unsigned tn_whole __attribute__((vector_size(4 * TN_V))); /* sums beyond its range wrap around */

/* The larger of each pair of numbers; y if one is NaN. */
TN_INLINE tn_vec tn_larger(tn_vec x, tn_vec y) {
#if TN_V == 16
    return (tn_vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif TN_V == 8
    return (tn_vec)_mm256_max_ps((__m256)x, (__m256)y);
#else
    const tn_bits larger = x > y;
    return (tn_vec)((larger & (tn_bits)x) | (~larger & (tn_bits)y));
#endif
}

/* The first n numbers of x, then others. */
TN_INLINE tn_vec tn_begin_of(tn_vec x, ptrdiff_t n, float other) {
    if (n >= TN_V) return x;
#if TN_V == 16
    return (tn_vec)_mm512_mask_mov_ps(_mm512_set1_ps(other), n > 0 ? (1 << n) - 1 : 0, (__m512)x);
#else
    tn_bits lane;
    TN_UNROLL for (int i = 0; i < TN_V; i++) lane[i] = i;
    const tn_bits first = lane < (int)n;
    return (tn_vec)((first & (tn_bits)x) | (~first & (tn_bits)tn_same(other)));
#endif
}

/* most[i] = the largest of x[i], x[i + TN_V], .. of n floats, the last register of which is read whole.
   NaN is ignored. */
static inline void tn_lanes_max(float* most, const float* x, ptrdiff_t n) {
    tn_vec y = tn_same(-INFINITY);
    for (ptrdiff_t i = 0; i < n; i += TN_V)
        y = tn_larger(tn_begin_of(tn_load(x + i), n - i, -INFINITY), y);
    tn_store(most, y);
}

/* e^x = 2^n e^r as in exp_ of _common.pxd, right to 1e-7. e^r is the polynomial of degree 6 that begins
   with 1 + r and whose largest relative error is the least: 3.2e-9. */
TN_INLINE tn_vec tn_exact_weight(tn_vec x) {
    const float magic = 12582912; /* 1.5 * 2^23: adding it rounds to the nearest integer */
    x = tn_larger(tn_same(-87.5f), x); /* below it: 0; NaN stays */
#if TN_V != 16
    x = -tn_larger(tn_same(-89), -x); /* above it: infinity */
#endif
    const tn_vec power = x * 1.44269504f + magic, n = power - magic;
    const tn_vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    tn_vec y = r * 1.38206617e-3f + 8.36867467e-3f;
    y = y * r + 4.16682661e-2f;
    y = y * r + 1.66665211e-1f;
    y = y * r + 4.99999940e-1f;
    y = y * r + 1;
    y = y * r + 1;
#if TN_V == 16
    return (tn_vec)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    return y * (tn_vec)(((tn_whole)power << 23) + (127U << 23)); /* n is in the last bits of power */
#endif
}

#if TN_V == 16
/* 2^t = 2^n 2^r with n = floor t, for weights that are rounded to bfloat16 next, which is up to 2e-3 off
   (2^-9). 2^r is the polynomial of degree 3 whose largest relative error on [0, 1) is the least: 7.5e-5
   (degree 2: 1.7e-3). */
TN_INLINE tn_vec tn_short_weight(tn_vec t) {
    const tn_vec r = (tn_vec)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF);
    tn_vec y = r * 0.078024523f + 0.22606716f;
    y = y * r + 0.69583354f;
    y = y * r + 0.99992522f;
    return (tn_vec)_mm512_scalef_ps((__m512)y, (__m512)t); /* y 2^floor t */
}
#define TN_WEIGHT(exact, x) (exact ? tn_exact_weight(x) : tn_short_weight(x))
#else
#define TN_WEIGHT(exact, x) tn_exact_weight(x)
#endif

/* Keeps a compiler from computing x - shift from a product that is not rounded yet. The largest score would
   not be 0 then, but up to half of its last bit away: 512 at 1e10. */
#ifdef __aarch64__
#define TN_ROUND(x) __asm__("" : "+w"(x))
#elif defined(__FMA__)
#define TN_ROUND(x) __asm__("" : "+x"(x))
#else
#define TN_ROUND(x) (void)0
#endif

TN_INLINE void tn_row_weights(float* total, float factor, float* p, ptrdiff_t seen, ptrdiff_t n,
                              float scale, float shift, int exact) {
    tn_vec sum = {0};
    for (ptrdiff_t i = 0; i < n; i += TN_V) {
        tn_vec x = scale * tn_load(p + i);
        TN_ROUND(x);
        const tn_vec y = tn_begin_of(TN_WEIGHT(exact, x - shift), seen - i, 0);
        tn_store(p + i, y);
        sum += y;
    }
    (void)exact;
    tn_store(total, factor * tn_load(total) + sum);
}

/* p[i] = e^(scale p[i] - shift) for the first `seen` of n floats (a multiple of TN_V), else 0; and
   total[i] = factor total[i] + (p[i] + p[i + TN_V] + ..). With AVX-512, weights that need not be exact
   are short ones; their t is off by 2^-24 of |scale p| + |shift|. */
static inline void tn_weights(float* total, float factor, float* p, ptrdiff_t seen, ptrdiff_t n,
                              float scale, float shift, int exact) {
    if (exact || TN_V != 16) {
        tn_row_weights(total, factor, p, seen, n, scale, shift, 1);
        return;
    }
    shift *= 1.44269504f;
    shift = shift < -FLT_MAX ? -FLT_MAX : shift; /* no key was seen yet: scores are -infinity, too */
    tn_row_weights(total, factor, p, seen, n, scale * 1.44269504f, shift, 0);
}

#else
#define TN_HAS_WEIGHTS 0 /* tn_weights must be here, but is not called */
#define tn_weights(...) ((void)0)

static inline void tn_lanes_max(float* most, const float* x, ptrdiff_t n) {
    for (int j = 0; j < TN_V; j++) most[j] = -INFINITY;
    for (ptrdiff_t i = 0; i < n; i++) {
        float* y = most + i % TN_V;
        *y = x[i] > *y ? x[i] : *y;
    }
}
#endif

#endif
