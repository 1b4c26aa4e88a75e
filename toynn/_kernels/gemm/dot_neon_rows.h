/* The dot products of dot_int8.h with one kind of instruction; dot_neon.c defines it before.

   Four rows of w by R rows of x at a time; R and the type are constants for the compiler. If w has
   fewer than four rows left, its last row is repeated. */

#if TN_PAIRED
/* Codes 8 u .. 8 u + 7 of one row, then the same of another. */
TN_INLINE int8x16_t tn_pair_of(int8x16_t a, int8x16_t b, int u) {
    const int64x2_t x = vreinterpretq_s64_s8(a), y = vreinterpretq_s64_s8(b);
    return vreinterpretq_s8_s64(u ? vzip2q_s64(x, y) : vzip1q_s64(x, y));
}

/* Read two rows of x as the stored pair: sum[p] has rows 2 p and 2 p + 1 of w by both. */
TN_INLINE TN_ASKED void tn_add_pairs(int32x4_t sum[2], const int8x16_t w[TN_ROWS], const int8_t* q) {
    TN_UNROLL for (int u = 0; u < 2; u++) {
        const int8x16_t x = vld1q_s8(q + 16 * u);
        TN_UNROLL for (int p = 0; p < 2; p++)
            sum[p] = vmmlaq_s32(sum[p], tn_pair_of(w[2 * p], w[2 * p + 1], u), x);
    }
}
#endif

/* total[r]: lane i is the sum of products of codes of row i of w and of row r of x. The codes of x
   begin at q[r] + at; there are 16, or 32 if w has a second half. */
TN_INLINE TN_ASKED void TN_UNIT(tn_sums)(int32x4_t total[TN_ROWS], int8x16_t w[][TN_ROWS], int halves,
                                         const int8_t* const q[TN_ROWS], ptrdiff_t at, int R) {
#if TN_PAIRED
    if (R > 1) {
        TN_UNROLL for (int r = 0; r < R; r += 2) {
            TN_IN_ORDER;
            int32x4_t sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
            TN_UNROLL for (int h = 0; h < halves; h++)
                tn_add_pairs(sum, w[h], q[r] + 2 * (at + 16 * h));
            total[r] = vuzp1q_s32(sum[0], sum[1]);
            total[r + 1] = vuzp2q_s32(sum[0], sum[1]);
        }
        return;
    }
#endif
    TN_UNROLL for (int r = 0; r < R; r++) {
        TN_IN_ORDER;
        int32x4_t sum[TN_ROWS];
        TN_UNROLL for (int h = 0; h < halves; h++) {
            const int8x16_t x = vld1q_s8(q[r] + at + 16 * h);
            TN_UNROLL for (int i = 0; i < TN_ROWS; i++)
                sum[i] = TN_DOT(h ? sum[i] : vdupq_n_s32(0), w[h][i], x);
        }
        total[r] = tn_sums_of_four(sum);
    }
}

/* y of four rows of w, of which N exist, by R rows of x. */
TN_INLINE TN_ASKED void TN_UNIT(tn_four)(int type, float* y, ptrdiff_t y_row, const uint8_t* first,
                                         ptrdiff_t w_row, ptrdiff_t N, const float* x,
                                         ptrdiff_t x_row, int R, ptrdiff_t n) {
    const ptrdiff_t nbytes = tn_bytes_of_256(type), scales = tn_scales(n);
    const uint8_t* w[TN_ROWS];
    const int8_t* q[TN_ROWS];
    const float* scale[TN_ROWS];
    float32x4_t acc[TN_ROWS];
    TN_UNROLL for (int i = 0; i < TN_ROWS; i++) w[i] = first + (i < N ? i : N - 1) * w_row;
    TN_UNROLL for (int r = 0; r < R; r++) {
        const float* pair = x + (r & ~1) * x_row;
        const int paired = TN_PAIRED && R > 1;
        q[r] = (const int8_t*)(paired ? pair : x + r * x_row);
        scale[r] = paired ? pair + tn_pair_scales(n, r & 1) : x + r * x_row + n / 4;
        acc[r] = vdupq_n_f32(0);
    }
    for (ptrdiff_t at = 0; at < n / TN_RUN; at += TN_RUNS) { /* in blocks of 32: up to 8 at a time */
        const int runs = n / TN_RUN - at < TN_RUNS ? (int)(n / TN_RUN - at) : TN_RUNS;
        tn_factors f;
        tn_factors_of(type, &f, w, runs);
        TN_UNROLL for (int i = 0; i < TN_ROWS; i++)
            for (ptrdiff_t b = 0; b < nbytes; b += 64) __builtin_prefetch(w[i] + TN_AHEAD + b);
        for (int j = 0; j < runs; j++) {
            const ptrdiff_t term = TN_RUN * (at + j);
            int8x16_t codes[2][TN_ROWS];
            int32x4_t total[TN_ROWS], more[TN_ROWS];
            TN_UNROLL for (int i = 0; i < TN_ROWS; i++) codes[0][i] = tn_codes(type, w[i], j, 0);
            TN_UNROLL for (int i = 0; i < TN_ROWS; i++) codes[1][i] = tn_codes(type, w[i], j, 1);
            if (type == TN_Q6_K) {
                TN_UNIT(tn_sums)(total, codes, 1, q, term, R);
                TN_UNIT(tn_sums)(more, codes + 1, 1, q, term + 16, R);
            } else {
                TN_UNIT(tn_sums)(total, codes, 2, q, term, R);
            }
            TN_UNROLL for (int r = 0; r < R; r++) {
                TN_IN_ORDER;
                if (type == TN_Q6_K)
                    total[r] = vmlaq_s32(vmulq_s32(total[r], f.a[2 * j]), more[r], f.a[2 * j + 1]);
                if (type == TN_Q4_K) acc[r] = vfmsq_n_f32(acc[r], f.m[j], scale[r][scales + at + j]);
                acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(total[r]),
                                   vmulq_n_f32(f.d[j], scale[r][at + j]));
            }
        }
        TN_UNROLL for (int i = 0; i < TN_ROWS; i++) w[i] += nbytes;
    }
    TN_UNROLL for (int r = 0; r < R; r++) {
        TN_UNROLL for (int i = 0; i < TN_ROWS; i++)
            if (i < N) y[r * y_row + i] = acc[r][i];
    }
}

TN_INLINE TN_ASKED void TN_UNIT(tn_rows)(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                         ptrdiff_t w_row, ptrdiff_t N, const float* x,
                                         ptrdiff_t x_row, int R, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < N; i += TN_ROWS)
        TN_UNIT(tn_four)(type, y + i, y_row, w + i * w_row, w_row, N - i, x, x_row, R, n);
}

#include "dot_rows.h"

#undef TN_PAIRED
#undef TN_DOT
