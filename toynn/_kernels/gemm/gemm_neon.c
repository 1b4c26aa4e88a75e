/* The form of pairs of bfloat16 (gemm_bf16.c), for FEAT_BF16 of arm64.

   bfmmla multiplies 2 rows of 4 terms by 2 columns of 4 terms and adds to 2 x 2 float32 sums. So a
   step has two pairs: 4 terms of each row, 8 bytes, and two rows fill a register. 6 x 4 registers
   of sums, 4 of B and one of A are 29 of 32. The manual fixes the order of the additions and the
   rounding of each sum (to odd) if FPCR.EBF = 0, as in a new thread. So all CPUs give the same bits.
   Source: Arm Architecture Reference Manual for A-profile, DDI 0487, BFMMLA and FPMatMulAddH. */
#include "forms.h"

#if TN_PAIRS == 2
#include <arm_neon.h>

TN_INLINE TN_BF16 bfloat16x8_t tn_pairs_at(const float* x) {
    return vreinterpretq_bf16_f32(vld1q_f32(x));
}

/* The sums of row `odd` (0 or 1) of two, from two registers. */
TN_INLINE tn_vec tn_row_of(float32x4_t left, float32x4_t right, int odd) {
    return (tn_vec)(odd ? vcombine_f32(vget_high_f32(left), vget_high_f32(right))
                        : vcombine_f32(vget_low_f32(left), vget_low_f32(right)));
}

TN_INLINE TN_BF16 void tn_pairs_body(int h, ptrdiff_t steps, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {
    float32x4_t sum[TN_MR / 2][4]; /* sum[i][j]: rows 2 i, 2 i + 1 by columns 2 j, 2 j + 1 */
    TN_UNROLL for (int i = 0; i < h; i += 2)
        TN_UNROLL for (int j = 0; j < 4; j++) sum[i / 2][j] = vdupq_n_f32(0);
    tn_expect(h, 2, c, ldc);
    for (ptrdiff_t s = 0; s < steps; s++) {
        bfloat16x8_t columns[4];
        TN_UNROLL for (int j = 0; j < 4; j++) columns[j] = tn_pairs_at(b + s * 2 * TN_NR + 4 * j);
        TN_UNROLL for (int i = 0; i < h; i += 2) {
            TN_IN_ORDER;
            const bfloat16x8_t rows = tn_pairs_at(a + s * 2 * TN_MR + 2 * i);
            TN_UNROLL for (int j = 0; j < 4; j++)
                sum[i / 2][j] = vbfmmlaq_f32(sum[i / 2][j], rows, columns[j]);
        }
    }
    tn_vec rows[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++)
        TN_UNROLL for (int v = 0; v < 2; v++)
            rows[i][v] = tn_row_of(sum[i / 2][2 * v], sum[i / 2][2 * v + 1], i % 2);
    tn_finish(h, 2, rows, c, ldc, add);
}

TN_BF16 static void tn_multiply_pairs(int h, ptrdiff_t steps, const float* a, const float* b,
                                      float* c, ptrdiff_t ldc, int add) {
    TN_ALL_HEIGHTS(tn_pairs_body, steps, a, b, c, ldc, add)
}

/* Four floats, rounded. */
TN_INLINE TN_BF16 uint16x4_t tn_round_four(float32x4_t x) {
    return vreinterpret_u16_bf16(vcvt_bf16_f32(x));
}

/* The first n of four floats; the others count as 0, and are not read. */
TN_INLINE float32x4_t tn_first_of_four(const float* x, ptrdiff_t n) {
    float four[4] = {0};
    for (int i = 0; i < 4; i++)
        if (i < n) four[i] = x[i];
    return vld1q_f32(four);
}

/* Columns that begin p.stride apart, each with contiguous terms: four terms make 8 bytes. */
TN_INLINE TN_BF16 void tn_pairs_along(float* y, int width, tn_piece p) {
    for (int i = 0; i < width; i++) {
        const float* row = p.x + (i < p.n ? i : p.n - 1) * p.stride; /* from n on unused: repeat */
        uint16_t* at = (uint16_t*)(y + 2 * i);
        ptrdiff_t k = 0;
        for (; k + 4 <= p.kc; k += 4) vst1_u16(at + k * width, tn_round_four(vld1q_f32(row + k)));
        if (k < p.kc) vst1_u16(at + k * width, tn_round_four(tn_first_of_four(row + k, p.kc - k)));
    }
}

/* Terms p.k_stride apart, in contiguous columns: four columns of four rows are interleaved. */
TN_INLINE TN_BF16 void tn_pairs_across(float* y, int width, tn_piece p) {
    for (ptrdiff_t k = 0; k < p.kc; k += 4) {
        for (int i = 0; i < width; i += 4) {
            uint16x4x4_t terms;
            TN_UNROLL for (int t = 0; t < 4; t++) {
                const float* at = p.x + (k + t) * p.k_stride + i;
                terms.val[t] = k + t >= p.kc || i >= p.n ? vdup_n_u16(0)
                    : tn_round_four(i + 4 <= p.n ? vld1q_f32(at) : tn_first_of_four(at, p.n - i));
            }
            vst4_u16((uint16_t*)(y + k / 2 * width + 2 * i), terms);
        }
    }
}

TN_BF16 static void tn_pack_pairs(float* y, int width, tn_piece p) {
    if (p.k_stride == 1) tn_pairs_along(y, width, p);
    else tn_pairs_across(y, width, p);
}

static void tn_pack_pairs_a(float* y, const tn_piece* p) { tn_pack_pairs(y, TN_MR, *p); }
static void tn_pack_pairs_b(float* y, const tn_piece* p) { tn_pack_pairs(y, TN_NR, *p); }

const tn_form tn_form_pairs = {
    .number = 1, .terms = 4, .pass_terms = TN_KC, .group = TN_GROUP,
    .a = {.width = TN_MR, .step = 2 * TN_MR, .even = 1, .spare = TN_V, .pack = tn_pack_pairs_a},
    .b = {.width = TN_NR, .step = 2 * TN_NR, .pack = tn_pack_pairs_b},
    .multiply = tn_multiply_pairs,
};
#endif
