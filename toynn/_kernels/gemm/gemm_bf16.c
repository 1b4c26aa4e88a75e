/* The register tile of gemm_bf16.h, and its packing, for AVX512_BF16. */
#include "gemm_bf16.h"

#if TN_PAIRS == 1
#include "bf16.h"

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

TN_BF16 void tn_tile_pairs(int h, ptrdiff_t pairs, const float* a, const float* b, float* c,
                           ptrdiff_t ldc, int add) {
    TN_ALL_HEIGHTS(tn_pairs_body, pairs, a, b, c, ldc, add)
}

/* Round 32 terms of 16 rows, from row[j] + k on; only the first kc terms of a row exist. */
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

/* Columns that begin x_row apart, each with contiguous terms: in blocks of 16 x 16 pairs. If fewer
   than `width` columns exist, the last one is repeated; pairs of the repetitions are not used. */
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

/* Terms x_k apart, in contiguous columns: two rows are interleaved. */
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

/* Pairs must be written in order: a register may be wider than a row of y, and the next pair
   overwrites the surplus. */
TN_BF16 void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n, ptrdiff_t stride,
                           ptrdiff_t k_stride, ptrdiff_t kc) {
    if (k_stride == 1) tn_pairs_along(y, width, x, n, stride, kc);
    else tn_pairs_across(y, width, x, n, k_stride, kc);
}

#elif !TN_PAIRS
void tn_tile_pairs(int h, ptrdiff_t steps, const float* a, const float* b, float* c, ptrdiff_t ldc,
                   int add) {}
void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n, ptrdiff_t stride,
                   ptrdiff_t k_stride, ptrdiff_t kc) {}
#endif
