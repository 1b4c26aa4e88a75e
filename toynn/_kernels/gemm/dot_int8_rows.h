/* The dot products of dot_int8.h with one kind of instruction; dot_int8.c defines it before.

   A row of w by R rows of x at a time; R and the type are constants for the compiler. */

/* Eight sums of four products each, of codes w by codes x of block j; a belongs to Q6_K. */
TN_INLINE TN_ASKED __m256i TN_UNIT(tn_sums)(int type, __m256i w, __m256i x, __m256i a, int j) {
    switch (type) {
    case TN_Q4_0:
    case TN_Q4_K: return TN_FOURS(TN_PRODUCTS(w, x));
    case TN_Q8_0: return TN_FOURS(TN_PRODUCTS(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
    case TN_Q6_K: {
        const __m256i less = TN_LESS(TN_PRODUCTS(w, x), TN_PRODUCTS(_mm256_set1_epi8(32), x));
        return _mm256_madd_epi16(less, _mm256_shuffle_epi8(a, TN_FACTOR(j)));
    }
    }
    __builtin_unreachable();
}

/* Add the contribution of blocks 0 .. runs - 1, of 8. It is summed separately, so that it need not
   wait for the sum of the 8 blocks before. */
TN_INLINE TN_ASKED void TN_UNIT(tn_add)(int type, __m256* acc, const uint8_t* w, const int8_t* q,
                                        const float* scale, const float* sum, ptrdiff_t x_row,
                                        int R, int runs) {
    float by[TN_ROWS][TN_RUNS];
    __m256 m, part[TN_ROWS];
    const __m256 d = tn_d_and_m(type, w, runs, &m);
    const __m256i a = type == TN_Q6_K ? tn_a(w) : _mm256_setzero_si256();
    TN_UNROLL for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(by[r], d * _mm256_loadu_ps(scale + r * x_row));
        part[r] = _mm256_setzero_ps();
        if (type == TN_Q4_0 || type == TN_Q4_K) part[r] -= m * _mm256_loadu_ps(sum + r * x_row);
    }
    TN_UNROLL for (int j = 0; j < TN_RUNS; j++) {
        if (j >= runs) break;
        const __m256i codes = tn_codes(type, w, j);
        TN_UNROLL for (int r = 0; r < R; r++) {
            const __m256i x = tn_bytes(q + 4 * r * x_row + TN_RUN * j);
            const __m256 sums = _mm256_cvtepi32_ps(TN_UNIT(tn_sums)(type, codes, x, a, j));
            part[r] = _mm256_fmadd_ps(sums, _mm256_set1_ps(by[r][j]), part[r]);
        }
    }
    TN_UNROLL for (int r = 0; r < R; r++) acc[r] += part[r];
}

/* y of one row of w by R rows of x. */
TN_INLINE TN_ASKED void TN_UNIT(tn_row)(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                        const float* x, ptrdiff_t x_row, int R, ptrdiff_t n) {
    const int8_t* q = (const int8_t*)x;
    const float* scale = x + n / 4;
    const float* sum = scale + tn_scales(n);
    const ptrdiff_t nbytes = tn_bytes_of_256(type);
    __m256 acc[TN_ROWS];
    TN_UNROLL for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
    for (; n >= TN_RUNS * TN_RUN; n -= TN_RUNS * TN_RUN) {
        TN_UNROLL for (ptrdiff_t i = 0; i < nbytes; i += 64) __builtin_prefetch(w + TN_AHEAD + i);
        TN_UNIT(tn_add)(type, acc, w, q, scale, sum, x_row, R, TN_RUNS);
        w += nbytes;
        q += TN_RUNS * TN_RUN;
        scale += TN_RUNS;
        sum += TN_RUNS;
    }
    if (n) TN_UNIT(tn_add)(type, acc, w, q, scale, sum, x_row, R, (int)(n / TN_RUN));
    TN_UNROLL for (int r = 0; r < R; r++) y[r * y_row] = tn_sum8(acc[r]);
}

TN_INLINE TN_ASKED void TN_UNIT(tn_rows)(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                         ptrdiff_t w_row, ptrdiff_t N, const float* x,
                                         ptrdiff_t x_row, int R, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < N; i++)
        TN_UNIT(tn_row)(type, y + i, y_row, w + i * w_row, x, x_row, R, n);
}

#include "dot_rows.h"

#undef TN_PRODUCTS
#undef TN_FOURS
#undef TN_LESS
#undef TN_FACTOR
