/* Dot products of a row of x with several rows of w side by side, for products of few rows (GEMV):

       sums[j][c % 16] += x[c] w[j][c]    for TN_TOGETHER rows j of w, c ascending

   A sum can take its next product only when the last multiply-add is done, about four cycles later.
   Those cycles are for the sums of the other rows. Each sum has the order of add_products in
   _common.pxd, so the bits are the same.

   Written with the vector extensions of GCC and clang; other compilers get the same in plain C. */
#ifndef TOYNN_GEMV_H
#define TOYNN_GEMV_H

#include <stddef.h>

#include "gemm.h"

#define TN_LANES 16

/* As many as the registers hold: with SSE, the sums of a row take 4 of 16. */
#if defined(__AVX__) || defined(TN_NEON)
#define TN_TOGETHER 4
#else
#define TN_TOGETHER 2
#endif

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
    for (; c < n; c++)
        for (int j = 0; j < TN_TOGETHER; j++) sums[j * TN_LANES + c % TN_LANES] += x[c] * w[j][c];
}

#endif
