/* The form of pairs of bfloat16, for AVX512_BF16. Panels have half the bytes of panels of floats, and an
   instruction has at least twice the multiply-adds.

   A pair holds two terms of a sum, 2 p and 2 p + 1, in the 4 bytes of a float. The first term is in
   the lower half. So a packed panel of pairs looks like a panel of floats with half as many terms.
   vdpbf16ps adds both products of a pair to a float32 sum. Rounding is to nearest, ties to even. NaN
   and infinities stay; subnormals count as 0. Pairs of rows or columns that do not exist are not used.
   Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. */
#include "forms.h"

#if TN_PAIRS == 1
#include "bf16.h"

TN_INLINE TN_BF16 void tn_pairs_body(int h, ptrdiff_t pairs, const float* a, ptrdiff_t a_row,
                                     ptrdiff_t a_k, const float* b, float* c, ptrdiff_t ldc,
                                     int add) {
    tn_vec sum[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++) sum[i][0] = sum[i][1] = (tn_vec){0};
    tn_expect(h, 2, c, ldc);
    for (ptrdiff_t p = 0; p < pairs; p++) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_ps(b + p * TN_NR);
        const __m512bh b1 = (__m512bh)_mm512_loadu_ps(b + p * TN_NR + TN_V);
        TN_UNROLL for (int i = 0; i < h; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_ps(a[i * a_row + p * a_k]);
            sum[i][0] = (tn_vec)_mm512_dpbf16_ps((__m512)sum[i][0], x, b0);
            sum[i][1] = (tn_vec)_mm512_dpbf16_ps((__m512)sum[i][1], x, b1);
        }
    }
    tn_finish(h, 2, sum, c, ldc, add);
}

TN_BF16 static void tn_multiply_pairs(int h, ptrdiff_t pairs, const float* a, const float* b,
                                      float* c, ptrdiff_t ldc, int add) {
    const ptrdiff_t a_row = 1, a_k = TN_MR;
    TN_ALL_HEIGHTS(tn_pairs_body, pairs, a, a_row, a_k, b, c, ldc, add)
}

/* One of the strides is 1: the compiler then needs fewer registers for addresses. */
TN_BF16 static void tn_multiply_rounded(int h, ptrdiff_t pairs, const float* a, ptrdiff_t a_row,
                                        ptrdiff_t a_k, const float* b, float* c, ptrdiff_t ldc,
                                        int add) {
    if (a_row == 1) TN_ALL_HEIGHTS(tn_pairs_body, pairs, a, 1, a_k, b, c, ldc, add)
    else TN_ALL_HEIGHTS(tn_pairs_body, pairs, a, a_row, 1, b, c, ldc, add)
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

/* Columns that begin p.stride apart, each with contiguous terms: in blocks of 16 x 16 pairs. If fewer
   than `width` columns exist, the last one is repeated; pairs of the repetitions are not used. */
TN_INLINE TN_BF16 void tn_pairs_along(float* y, int width, tn_piece p) {
    for (int i = 0; i < width; i += 16) {
        const float* row[16];
        for (int j = 0; j < 16; j++) row[j] = p.x + (i + j < p.n ? i + j : p.n - 1) * p.stride;
        for (ptrdiff_t k = 0; k < p.kc; k += 32) {
            tn_vec r[16];
            tn_round_rows(r, row, k, p.kc);
            tn_exchange(r);
            float* at = y + k / 2 * width + i;
            if (p.kc - k >= 32) {
                TN_UNROLL for (int j = 0; j < 16; j++) tn_store(at + j * width, r[j]);
            } else {
                for (int j = 0; k + 2 * j < p.kc; j++) tn_store(at + j * width, r[j]);
            }
        }
    }
}

/* Terms p.k_stride apart, in contiguous columns: two rows are interleaved. */
TN_INLINE TN_BF16 void tn_pairs_across(float* y, ptrdiff_t ld, ptrdiff_t width, tn_piece p) {
    for (ptrdiff_t i = 0; i < width; i += 16) {
        const __mmask16 exist = tn_mask(p.n - i);
        for (ptrdiff_t k = 0; k < p.kc; k += 2) {
            const float* row = p.x + k * p.k_stride + i;
            const __m512 even = _mm512_maskz_loadu_ps(exist, row);
            const __m512 odd = _mm512_maskz_loadu_ps(k + 1 < p.kc ? exist : 0, row + p.k_stride);
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            tn_store(y + k / 2 * ld + i, (tn_vec)tn_interleaved(both));
        }
    }
}

/* y may be x. Along: what a row has beyond its columns is rounded, too, up to whole registers. */
TN_BF16 static void tn_round_pairs(float* y, const float* x, ptrdiff_t ld, ptrdiff_t rows,
                                   ptrdiff_t columns, int across) {
    if (across) {
        tn_pairs_across(y, ld, columns, (tn_piece){x, columns, 1, ld, rows, 0, 0});
        return;
    }
    for (ptrdiff_t r = 0; r < rows; r++)
        for (ptrdiff_t c = 0; c < columns; c += 16)
            _mm256_storeu_ps(y + r * ld + c / 2,
                             (__m256)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + r * ld + c)));
}

/* Pairs must be written in order: a register may be wider than a row of y, and the next pair
   overwrites the surplus. */
TN_BF16 static void tn_pack_pairs(float* y, int width, tn_piece p) {
    if (p.k_stride == 1) tn_pairs_along(y, width, p);
    else tn_pairs_across(y, width, width, p);
}

static void tn_pack_pairs_a(float* y, const tn_piece* p) { tn_pack_pairs(y, TN_MR, *p); }
static void tn_pack_pairs_b(float* y, const tn_piece* p) { tn_pack_pairs(y, TN_NR, *p); }

const tn_form tn_form_pairs = {
    .number = 1, .terms = 2, .pass_terms = TN_KC, .group = TN_GROUP,
    .a = {.width = TN_MR, .step = TN_MR, .even = 1, .spare = TN_V, .pack = tn_pack_pairs_a},
    .b = {.width = TN_NR, .step = TN_NR, .pack = tn_pack_pairs_b},
    .multiply = tn_multiply_pairs, .round = tn_round_pairs, .multiply_rounded = tn_multiply_rounded,
};
#endif
