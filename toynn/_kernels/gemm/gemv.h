/* Dot products of a row of x with several rows of w side by side, for products of few rows (GEMV):

       sums[j][c % 16] += x[c] w[j][c]    for TN_TOGETHER rows j of w, c ascending

   A sum can take its next product only when the last multiply-add is done, about four cycles later.
   Those cycles are for the sums of the other rows. Each sum has the order of add_products in
   _common.pxd, so the bits are the same. They are the same beside other rows of x, too.

   Written with the vector extensions of GCC and clang; other compilers get the same in plain C. */
#ifndef TOYNN_GEMV_H
#define TOYNN_GEMV_H

#include <stddef.h>

#include "gemm.h"
#if TN_GNU && defined(__AVX__)
#include <immintrin.h>
#endif

#define TN_LANES 16

/* As many as the registers hold: with SSE, the sums of a row take 4 of 16. */
#if defined(__AVX__) || defined(TN_NEON)
#define TN_TOGETHER 4
#else
#define TN_TOGETHER 2
#endif

#if TN_GNU
typedef float tn_four __attribute__((vector_size(16)));
typedef float tn_four_u __attribute__((vector_size(16), aligned(4), may_alias));
#endif

/* Terms c .. n - 1, fewer than TN_LANES, of R rows of x; c is a multiple of TN_LANES. */
TN_INLINE void tn_add_last(int R, float* sums, ptrdiff_t sums_row, const float* x, ptrdiff_t x_row,
                           const float* const* w, ptrdiff_t c, ptrdiff_t n) {
    int lane = 0;
#if TN_GNU
    for (; c + 4 <= n; c += 4, lane += 4)
        TN_UNROLL for (int r = 0; r < R; r++) {
            const tn_four v = *(const tn_four_u*)(x + r * x_row + c);
            TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
                *(tn_four_u*)(sums + r * sums_row + j * TN_LANES + lane) +=
                    v * *(const tn_four_u*)(w[j] + c);
        }
#endif
    for (; c < n; c++, lane++)
        for (int r = 0; r < R; r++)
            for (int j = 0; j < TN_TOGETHER; j++)
                sums[r * sums_row + j * TN_LANES + lane] += x[r * x_row + c] * w[j][c];
}

TN_INLINE void tn_add_products(float* sums, const float* x, const float* const* w, ptrdiff_t n) {
    ptrdiff_t c = 0;
#if TN_GNU
    enum { PARTS = TN_LANES / TN_V };
    tn_vec s[TN_TOGETHER][PARTS];
    const float* row[TN_TOGETHER];
    TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++) {
        row[j] = w[j];
        TN_UNROLL for (int p = 0; p < PARTS; p++) s[j][p] = tn_load(sums + j * TN_LANES + p * TN_V);
    }
    for (; c + TN_LANES <= n; c += TN_LANES)
        TN_UNROLL for (int p = 0; p < PARTS; p++) {
            const tn_vec v = tn_load(x + c + p * TN_V);
            TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
                s[j][p] += v * tn_load(row[j] + c + p * TN_V);
        }
    TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
        TN_UNROLL for (int p = 0; p < PARTS; p++) tn_store(sums + j * TN_LANES + p * TN_V, s[j][p]);
#endif
    tn_add_last(1, sums, 0, x, 0, w, c, n);
}

/* Rows of x that share each row of w: as many as the registers hold sums of. */
#define TN_DOWN (TN_V == 16 ? 6 : 3)

/* The same for R rows of x, x_row apart. Their sums are sums_row apart. */
TN_INLINE void tn_add_down(int R, float* sums, ptrdiff_t sums_row, const float* x, ptrdiff_t x_row,
                           const float* const* w, ptrdiff_t n) {
    ptrdiff_t c = 0;
#if TN_GNU
    TN_UNROLL for (int p = 0; p < TN_LANES; p += TN_V) {
        tn_vec s[TN_DOWN][TN_TOGETHER], v[TN_DOWN];
        TN_UNROLL for (int r = 0; r < R; r++)
            TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
                s[r][j] = tn_load(sums + r * sums_row + j * TN_LANES + p);
        for (c = 0; c + TN_LANES <= n; c += TN_LANES) {
            TN_UNROLL for (int r = 0; r < R; r++) v[r] = tn_load(x + r * x_row + c + p);
            TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++) {
                const tn_vec own = tn_load(w[j] + c + p);
                TN_UNROLL for (int r = 0; r < R; r++) s[r][j] += v[r] * own;
            }
        }
        TN_UNROLL for (int r = 0; r < R; r++)
            TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
                tn_store(sums + r * sums_row + j * TN_LANES + p, s[r][j]);
    }
#endif
    tn_add_last(R, sums, sums_row, x, x_row, w, c, n);
}

#define TN_DOWN_CASE(R) case R: if (R <= TN_DOWN) tn_add_down(R, at, sums_row, row, x_row, w, n); break;

/* The same for M rows of x, in blocks of nearly the same height. */
TN_INLINE void tn_add_rows(float* sums, ptrdiff_t sums_row, const float* x, ptrdiff_t x_row,
                           ptrdiff_t M, const float* const* w, ptrdiff_t n) {
    const ptrdiff_t blocks = (M + TN_DOWN - 1) / TN_DOWN;
    for (ptrdiff_t i = 0; i < blocks; i++) {
        const ptrdiff_t m = i * M / blocks;
        const float* row = x + m * x_row;
        float* at = sums + m * sums_row;
        switch ((i + 1) * M / blocks - m) {
        case 1: tn_add_products(at, row, w, n); break;
        TN_DOWN_CASE(2) TN_DOWN_CASE(3) TN_DOWN_CASE(4) TN_DOWN_CASE(5) TN_DOWN_CASE(6)
        }
    }
}

#if TN_GNU
/* What is left of 16 lanes: four sums, whose total is (s[0] + s[2]) + (s[1] + s[3]). */
TN_INLINE tn_four tn_sum_fours(const float* sums) {
    const tn_four_u* x = (const tn_four_u*)sums;
    return (x[0] + x[2]) + (x[1] + x[3]);
}
#endif

/* sum_lanes of _common.pxd. */
TN_INLINE float tn_sum_lanes(const float* sums) {
    float s[4];
#if TN_GNU
    const tn_four t = tn_sum_fours(sums);
    for (int k = 0; k < 4; k++) s[k] = t[k];
#else
    for (int k = 0; k < 4; k++) s[k] = (sums[k] + sums[k + 8]) + (sums[k + 4] + sums[k + 12]);
#endif
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* The same for TN_TOGETHER sums that follow each other. */
TN_INLINE void tn_sum_rows(float* y, const float* sums) {
#if TN_GNU && defined(__AVX__)
    __m128 s[4];
    TN_UNROLL for (int j = 0; j < 4; j++) s[j] = (__m128)tn_sum_fours(sums + j * TN_LANES);
    _MM_TRANSPOSE4_PS(s[0], s[1], s[2], s[3]);
    _mm_storeu_ps(y, (s[0] + s[2]) + (s[1] + s[3]));
#else
    for (int j = 0; j < TN_TOGETHER; j++) y[j] = tn_sum_lanes(sums + j * TN_LANES);
#endif
}

#endif
