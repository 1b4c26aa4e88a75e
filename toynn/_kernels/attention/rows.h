/* Sums and maxima of rows. A compiler may not reorder a sum of floats, and does not vectorise a maximum
   in this fixed order. So their lanes are written out here. */
#ifndef TOYNN_ROWS_H
#define TOYNN_ROWS_H

#include <math.h>
#include "gemm.h"
#if TN_V == 16
#include <immintrin.h>
#endif

/* x = scale x; most[i] = the largest of x[i], x[i + TN_V], ..: n floats, a multiple of TN_V. NaN is
   ignored. */
static inline void tn_lanes_max(float* most, float* x, ptrdiff_t n, float scale) {
#ifdef TN_SHUFFLES
    typedef int tn_bits __attribute__((vector_size(4 * TN_V)));
    tn_vec y = (tn_vec){0} - INFINITY;
    for (ptrdiff_t i = 0; i < n; i += TN_V) {
        const tn_vec v = scale * tn_load(x + i);
        tn_store(x + i, v);
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

#endif
