/* Sums and maxima of rows. A compiler may not reorder a sum of floats, and does not vectorise a maximum
   in this fixed order. So their lanes are written out here. And weights that are rounded next. */
#ifndef TOYNN_ROWS_H
#define TOYNN_ROWS_H

#include <float.h>
#include <math.h>
#include "gemm.h"
#if TN_V == 16
#include <immintrin.h>
#endif

/* most[i] = the largest of x[i], x[i + TN_V], ..: n floats, a multiple of TN_V. NaN is ignored. First
   x = scale x, unless scale is 1. */
static inline void tn_lanes_max(float* most, float* x, ptrdiff_t n, float scale) {
#ifdef TN_SHUFFLES
    typedef int tn_bits __attribute__((vector_size(4 * TN_V)));
    tn_vec y = (tn_vec){0} - INFINITY;
    for (ptrdiff_t i = 0; i < n; i += TN_V) {
        const tn_vec v = scale * tn_load(x + i);
        if (scale != 1) tn_store(x + i, v);
#if TN_V == 16
        y = (tn_vec)_mm512_max_ps((__m512)v, (__m512)y);
#else
        const tn_bits larger = v > y;
        y = (tn_vec)((larger & (tn_bits)v) | (~larger & (tn_bits)y));
#endif
    }
    tn_store(most, y);
#else
    for (int j = 0; j < TN_V; j++) most[j] = -INFINITY;
    for (ptrdiff_t i = 0; i < n; i++) {
        float* y = most + i % TN_V;
        x[i] *= scale;
        *y = x[i] > *y ? x[i] : *y;
    }
#endif
}

/* total[i] = x[i] + x[i + TN_V] + ..: n floats, a multiple of TN_V. */
static inline void tn_lanes_sum(float* total, const float* x, ptrdiff_t n) {
#ifdef TN_SHUFFLES
    tn_vec y = {0};
    for (ptrdiff_t i = 0; i < n; i += TN_V) y += tn_load(x + i);
    tn_store(total, y);
#else
    for (int j = 0; j < TN_V; j++) total[j] = 0;
    for (ptrdiff_t i = 0; i < n; i++) total[i % TN_V] += x[i];
#endif
}

/* p[i] = e^(scale p[i] - shift) for the first `seen` of n floats (a multiple of TN_V), else 0; total is
   their sums, as above. For weights that are rounded to bfloat16 next, which is up to 2e-3 off (2^-9).

   e^x = 2^t = 2^n 2^r with n = floor t. 2^r is the polynomial of degree 3 whose largest relative error
   on [0, 1) is the least: 7.5e-5 (degree 2: 1.7e-3). t is off by 2^-24 of |scale p| + |shift|. */
static inline void tn_short_weights(float* total, float* p, ptrdiff_t seen, ptrdiff_t n, float scale,
                                    float shift) {
    const float c0 = 0.99992522f, c1 = 0.69583354f, c2 = 0.22606716f, c3 = 0.078024523f;
    const float by = scale * 1.44269504f;
    float from = shift * 1.44269504f;
    from = from < -FLT_MAX ? -FLT_MAX : from; /* no key was seen yet: scores are -infinity, too */
#if TN_V == 16
    __m512 sum = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < n; i += 16) {
        const __m512 t = _mm512_fmsub_ps(_mm512_loadu_ps(p + i), _mm512_set1_ps(by),
                                         _mm512_set1_ps(from));
        const __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF);
        __m512 y = _mm512_fmadd_ps(r, _mm512_set1_ps(c3), _mm512_set1_ps(c2));
        y = _mm512_fmadd_ps(r, y, _mm512_set1_ps(c1));
        y = _mm512_scalef_ps(_mm512_fmadd_ps(r, y, _mm512_set1_ps(c0)), t); /* y 2^floor t */
        if (seen < i + 16) y = _mm512_maskz_mov_ps(seen > i ? (1 << (seen - i)) - 1 : 0, y);
        _mm512_storeu_ps(p + i, y);
        sum = _mm512_add_ps(sum, y);
    }
    _mm512_storeu_ps(total, sum);
#else
    const float magic = 12582912; /* 1.5 * 2^23: adding it rounds to the nearest integer */
    for (int i = 0; i < (int)n; i++) { /* as wide as a float: whole registers are compared */
        float t = by * p[i] - from;
        t = t > 128.5f ? 128.5f : t < -126.5f ? -126.5f : t; /* beyond: infinity, or 0 */
        union { float f; unsigned i; } power = {t - 0.5f + magic};
        const float r = t - (power.f - magic);
        power.i = (power.i << 23) + (127u << 23);
        p[i] = i < (int)seen ? (((c3 * r + c2) * r + c1) * r + c0) * power.f : 0;
    }
    tn_lanes_sum(total, p, n);
#endif
}

#endif
