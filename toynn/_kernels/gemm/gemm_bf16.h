/* The register tile for pairs of bfloat16, and how they are packed: half the bytes of gemm.h's
   panels, and twice the multiply-adds per instruction.

   A pair holds terms 2 p and 2 p + 1 of a sum, the first in the lower half, in the 4 bytes of a
   float: a packed panel of pairs looks like one of floats with half as many terms. vdpbf16ps adds
   both products of a pair to a float32 sum. Rounding is to nearest, ties to even; NaN stays NaN,
   infinities stay; subnormals count as 0. AVX512_BF16 is asked for by these functions alone, not by
   the module: whoever calls them has made sure that the CPU has it.
   Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. */
#ifndef TOYNN_GEMM_BF16_H
#define TOYNN_GEMM_BF16_H

#include "gemm.h"

#if defined(__AVX512F__) && defined(TN_SHUFFLES)
#include <immintrin.h>
#define TN_PAIRS 1
#define TN_BF16 __attribute__((target("avx512bf16")))

TN_INLINE TN_BF16 void tn_pairs_body(int h, ptrdiff_t pairs, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {
    tn_vec sum[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++) {
        sum[i][0] = sum[i][1] = (tn_vec){0};
        TN_PREFETCH(c + i * ldc);
        TN_PREFETCH(c + i * ldc + TN_V);
    }
    for (ptrdiff_t p = 0; p < pairs; p++) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_ps(b + p * TN_NR);
        const __m512bh b1 = (__m512bh)_mm512_loadu_ps(b + p * TN_NR + TN_V);
        TN_UNROLL for (int i = 0; i < h; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_ps(a[p * TN_MR + i]);
            sum[i][0] = (tn_vec)_mm512_dpbf16_ps((__m512)sum[i][0], x, b0);
            sum[i][1] = (tn_vec)_mm512_dpbf16_ps((__m512)sum[i][1], x, b1);
        }
    }
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < 2; v++) {
            float* at = c + i * ldc + v * TN_V;
            tn_store(at, add ? tn_load(at) + sum[i][v] : sum[i][v]);
        }
    }
}

/* Packed operands: for each pair of terms, TN_MR pairs of A (h of them used) and TN_NR of B. */
TN_BF16 static inline void tn_tile_pairs(int h, ptrdiff_t pairs, const float* a, const float* b,
                                         float* c, ptrdiff_t ldc, int add) {
    TN_ALL_HEIGHTS(tn_pairs_body, pairs, a, b, c, ldc, add)
}

/* The first n of 16 lanes. */
TN_INLINE __mmask16 tn_mask(ptrdiff_t n) { return n >= 16 ? 0xFFFF : n > 0 ? (1 << n) - 1 : 0; }

/* The first n of 16 floats; the others count as 0, and are not read. */
TN_INLINE __m512 tn_first(const float* x, ptrdiff_t n) {
    return _mm512_maskz_loadu_ps(tn_mask(n), x);
}

/* 16 rows of 32 terms, rounded: row[j] + k .. ; of the terms only kc exist. */
TN_INLINE TN_BF16 void tn_round_rows(tn_vec r[16], const float* const row[16], ptrdiff_t k,
                                     ptrdiff_t kc) {
    if (kc - k >= 32) {
        TN_UNROLL for (int j = 0; j < 16; j++)
            r[j] = (tn_vec)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(row[j] + k + 16),
                                               _mm512_loadu_ps(row[j] + k));
    } else {
        TN_UNROLL for (int j = 0; j < 16; j++)
            r[j] = (tn_vec)_mm512_cvtne2ps_pbh(tn_first(row[j] + k + 16, kc - k - 16),
                                               tn_first(row[j] + k, kc - k));
    }
}

/* Columns that begin x_row apart, the terms of each side by side: blocks of 16 x 16 pairs. What is
   written for columns that do not exist is of no matter: here, the last one that does, again. */
TN_INLINE TN_BF16 void tn_pairs_along(float* y, int width, const float* x, ptrdiff_t n,
                                      ptrdiff_t x_row, ptrdiff_t kc) {
    for (int i = 0; i < width; i += 16) {
        const float* row[16];
        for (int j = 0; j < 16; j++) row[j] = x + (i + j < n ? i + j : n - 1) * x_row;
        for (ptrdiff_t k = 0; k < kc; k += 32) {
            tn_vec r[16];
            tn_round_rows(r, row, k, kc);
            tn_exchange(r);
            float* at = y + k / 2 * width + i;
            if (kc - k >= 32) {
                TN_UNROLL for (int j = 0; j < 16; j++) tn_store(at + j * width, r[j]);
            } else {
                for (int j = 0; k + 2 * j < kc; j++) tn_store(at + j * width, r[j]);
            }
        }
    }
}

/* 0 16 1 17 2 18 .. of 32 halves of a register: two terms of 16 columns, in pairs. */
TN_INLINE __m512i tn_interleaved(__m512i both) {
    const __m512i column = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i lanes = _mm512_or_si512(
        column, _mm512_slli_epi32(_mm512_add_epi32(column, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(lanes, both);
}

/* Terms that lie x_k apart, columns side by side: two rows are interleaved. */
TN_INLINE TN_BF16 void tn_pairs_across(float* y, int width, const float* x, ptrdiff_t n,
                                       ptrdiff_t x_k, ptrdiff_t kc) {
    for (int i = 0; i < width; i += 16) {
        const __mmask16 exist = tn_mask(n - i);
        for (ptrdiff_t k = 0; k < kc; k += 2) {
            const float* row = x + k * x_k + i;
            const __m512 even = _mm512_maskz_loadu_ps(exist, row);
            const __m512 odd = _mm512_maskz_loadu_ps(k + 1 < kc ? exist : 0, row + x_k);
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            tn_store(y + k / 2 * width + i, (tn_vec)tn_interleaved(both));
        }
    }
}

/* The pair y[p * width + i] = x[i * stride + k * k_stride] for k = 2 p, 2 p + 1, rounded; 0 for the
   columns and the term that do not exist. One of the strides is 1. Where a register is wider than
   y, its surplus is written over by the next pair: hence p ascends. */
TN_BF16 static inline void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n,
                                         ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {
    if (k_stride == 1) tn_pairs_along(y, width, x, n, stride, kc);
    else tn_pairs_across(y, width, x, n, k_stride, kc);
}

#else
/* Never called: no Operand is packed in pairs where there are none. */
#define TN_PAIRS 0
static inline void tn_tile_pairs(int h, ptrdiff_t pairs, const float* a, const float* b, float* c,
                                 ptrdiff_t ldc, int add) {}
static inline void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n,
                                 ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {}
#endif

#endif
