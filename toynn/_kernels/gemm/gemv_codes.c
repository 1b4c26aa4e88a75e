/* Dot products of rows of x with quantized rows of w, dequantized in registers.

       lanes[j][c % 16] += x[c] w[j][c]    for TN_TOGETHER rows j of w, c ascending

   Each w[j][c] is the float that dequantizing gives (codes.h), and each sum has the order of gemv.h.
   So the bits are those of dequantizing first; but no float of w is stored and read again. */
#include "dot_int8.h"
#include "gemv.h"

#if TN_GNU && defined(__AVX2__)
#include "codes.h"

enum {
    TN_PARTS = TN_LANES / TN_V,
    TN_MOST = TN_V == 16 ? 4 : 1, /* rows of x, whose sums stay in registers */
    TN_FAR = 8192 /* bytes ahead that w is fetched, at least: the next rows of the same size */
};

/* Add the products of TN_V terms, from term `at` on, of row j of w. */
#define TN_ADD(at, weights)                                                                        \
    do {                                                                                           \
        const tn_vec own = weights;                                                                \
        TN_UNROLL for (int r = 0; r < R; r++)                                                      \
            sum[r][j][(at) % TN_LANES / TN_V] += own * tn_load(x + r * x_row + (at));              \
    } while (0)
#define TN_EACH_ROW TN_UNROLL for (int j = 0; j < TN_TOGETHER; j++)
#define TN_EACH_PART(i, n) TN_UNROLL for (int i = 0; i < n; i += TN_V)

TN_INLINE float tn_half_at(const uint8_t* raw) { return tn_half((uint16_t)(raw[0] | raw[1] << 8)); }

/* y[m * y_row + j] for TN_TOGETHER rows of w and R of x. */
TN_INLINE void tn_dot_codes(int type, int R, float* y, ptrdiff_t y_row, const uint8_t* const* rows,
                            const float* x, ptrdiff_t x_row, ptrdiff_t n, ptrdiff_t ahead) {
    tn_vec sum[TN_MOST][TN_TOGETHER][TN_PARTS];
    const uint8_t* w[TN_TOGETHER];
    float scale[TN_TOGETHER][16];
    TN_EACH_ROW w[j] = rows[j];
    TN_UNROLL for (int r = 0; r < R; r++)
        TN_EACH_ROW TN_UNROLL for (int p = 0; p < TN_PARTS; p++) sum[r][j][p] = (tn_vec){0};
    switch (type) {
    case TN_Q8_0:
        for (; n > 0; n -= 32, x += 32) TN_EACH_ROW {
            const float d = tn_half_at(w[j]);
            __builtin_prefetch(w[j] + ahead);
            TN_EACH_PART(i, 32) TN_ADD(i, TN_REALS(tn_signed((const int8_t*)w[j] + 2 + i)) * d);
            w[j] += sizeof(tn_q8_0);
        }
        break;
    case TN_Q4_0:
        for (; n > 0; n -= 32, x += 32) TN_EACH_ROW {
            const tn_line line = tn_line_of(tn_half_at(w[j]), 8, NULL);
            tn_ints q[16 / TN_V];
            __builtin_prefetch(w[j] + ahead);
            TN_EACH_PART(i, 16) q[i / TN_V] = tn_unsigned(w[j] + 2 + i);
            TN_EACH_PART(i, 16) TN_ADD(i, tn_on_line(line, q[i / TN_V]));
            TN_EACH_PART(i, 16) TN_ADD(16 + i, tn_on_line(line, q[i / TN_V] >> 4));
            w[j] += sizeof(tn_q4_0);
        }
        break;
    case TN_Q4_K:
        for (; n > 0; n -= 256) {
            TN_EACH_ROW {
                int8_t a[16];
                float least[16];
                tn_scales_k(a, w[j] + 4);
                tn_times(scale[j], a, tn_half_at(w[j]));
                tn_times(least, a, -tn_half_at(w[j] + 2));
                memcpy(scale[j] + 8, least + 8, 8 * sizeof *least);
            }
            for (int p = 0; p < 4; p++, x += 64) TN_EACH_ROW {
                const uint8_t* low = w[j] + 16 + 32 * p;
                const float* of = scale[j] + 2 * p;
                const tn_line a = tn_line_of(of[0], 0, of + 8), b = tn_line_of(of[1], 0, of + 9);
                tn_ints q[32 / TN_V];
                __builtin_prefetch(w[j] + ahead + 36 * p);
                TN_EACH_PART(i, 32) q[i / TN_V] = tn_unsigned(low + i);
                TN_EACH_PART(i, 32) TN_ADD(i, tn_on_line(a, q[i / TN_V]));
                TN_EACH_PART(i, 32) TN_ADD(32 + i, tn_on_line(b, q[i / TN_V] >> 4));
            }
            TN_EACH_ROW w[j] += sizeof(tn_q4_k);
        }
        break;
    case TN_Q6_K:
        for (; n > 0; n -= 256) {
            TN_EACH_ROW tn_times(scale[j], (const int8_t*)w[j] + 192, tn_half_at(w[j] + 208));
            for (int p = 0; p < 2; p++, x += 128) TN_EACH_ROW {
                const uint8_t* low = w[j] + 64 * p;
                const uint8_t* high = w[j] + 128 + 32 * p;
                const float* of = scale[j] + 8 * p;
                __builtin_prefetch(w[j] + ahead + 105 * p);
                __builtin_prefetch(w[j] + ahead + 105 * p + 53);
                TN_UNROLL for (int r4 = 0; r4 < 4; r4++) TN_EACH_PART(i, 32) {
                    const tn_ints a = tn_unsigned(low + 32 * (r4 % 2) + i) >> (r4 / 2 * 4);
                    TN_ADD(32 * r4 + i,
                           tn_six_bits(a, tn_unsigned(high + i), r4) * of[2 * r4 + i / 16]);
                }
            }
            TN_EACH_ROW w[j] += sizeof(tn_q6_k);
        }
    }
    TN_UNROLL for (int r = 0; r < R; r++) {
        float lanes[TN_TOGETHER * TN_LANES];
        TN_EACH_ROW TN_UNROLL for (int p = 0; p < TN_PARTS; p++)
            tn_store(lanes + j * TN_LANES + p * TN_V, sum[r][j][p]);
        tn_sum_rows(y + r * y_row, lanes);
    }
}

#define TN_CODES_CASE(R)                                                                           \
    case R: if (R <= TN_MOST) tn_dot_codes(type, R, to, to_row, rows, x, x_row, n, ahead); break;

TN_INLINE void tn_dots_of_codes(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                ptrdiff_t w_row, ptrdiff_t N, const float* x, ptrdiff_t x_row,
                                ptrdiff_t M, ptrdiff_t n) {
    const ptrdiff_t step = TN_TOGETHER * w_row, ahead = (TN_FAR + step - 1) / step * step;
    for (ptrdiff_t i = 0; i < N; i += TN_TOGETHER) {
        const uint8_t* rows[TN_TOGETHER];
        float last[TN_MOST][TN_TOGETHER];
        const int whole = i + TN_TOGETHER <= N;
        float* to = whole ? y + i : last[0];
        const ptrdiff_t to_row = whole ? y_row : TN_TOGETHER;
        TN_EACH_ROW rows[j] = w + (i + j < N ? i + j : N - 1) * w_row;
        switch (M) {
            TN_CODES_CASE(1) TN_CODES_CASE(2) TN_CODES_CASE(3) TN_CODES_CASE(4)
        }
        if (!whole)
            for (ptrdiff_t m = 0; m < M; m++)
                memcpy(y + m * y_row + i, last[m], (N - i) * sizeof *y);
    }
}

#define TN_DOTS(name, type)                                                                        \
    static void tn_codes_##name(float* y, ptrdiff_t y_row, const uint8_t* w, ptrdiff_t w_row,      \
                                ptrdiff_t N, const float* x, ptrdiff_t x_row, ptrdiff_t M,         \
                                ptrdiff_t n) {                                                     \
        tn_dots_of_codes(type, y, y_row, w, w_row, N, x, x_row, M, n);                             \
    }
TN_DOTS(q4_0, TN_Q4_0)
TN_DOTS(q8_0, TN_Q8_0)
TN_DOTS(q4_k, TN_Q4_K)
TN_DOTS(q6_k, TN_Q6_K)

tn_dot_fn tn_dot_codes_of(int type, ptrdiff_t M) {
    if (M > TN_MOST) return NULL;
    switch (type) {
    case TN_Q4_0: return tn_codes_q4_0;
    case TN_Q8_0: return tn_codes_q8_0;
    case TN_Q4_K: return tn_codes_q4_k;
    case TN_Q6_K: return tn_codes_q6_k;
    }
    return NULL;
}

#else
tn_dot_fn tn_dot_codes_of(int type, ptrdiff_t M) { return NULL; }
#endif
