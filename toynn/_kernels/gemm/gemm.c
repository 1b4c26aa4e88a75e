/* The form of floats: how its panels are packed, and the register tile of gemm.h. */
#include "forms.h"

#include <string.h>

#if TN_GNU

#ifdef TN_NEON
/* 24 sums, 2 vectors of B and 3 of A fill 29 of 32 registers: unrolling twice would spill some. */
#define TN_TWICE
/* Contiguous rows of A are loaded four at a time: a multiply-add can take any lane. */
#define TN_FOURS(a_row) (__builtin_constant_p(a_row) && (a_row) == 1)
#else
#define TN_TWICE _Pragma("GCC unroll 2")
#define TN_FOURS(a_row) 0
#endif

TN_INLINE void tn_tile_body(int h, int w, ptrdiff_t kc, const float* a, ptrdiff_t a_row,
                            ptrdiff_t a_k, const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc,
                            int add, int ahead) {
    tn_vec sum[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++) sum[i][0] = sum[i][1] = (tn_vec){0};
    if (ahead) tn_expect(h, w, c, ldc);
    TN_TWICE for (ptrdiff_t k = 0; k < kc; k++) {
        tn_vec row[2];
        TN_UNROLL for (int v = 0; v < w; v++) row[v] = tn_load(b + k * b_k + v * TN_V);
        tn_vec four = {0};
        TN_UNROLL for (int i = 0; i < h; i++) {
            const int whole = TN_FOURS(a_row) && i / 4 * 4 + 4 <= h;
            if (whole && i % 4 == 0) four = tn_load(a + i + k * a_k);
            const float x = whole ? four[i % 4] : a[i * a_row + k * a_k];
            TN_UNROLL for (int v = 0; v < w; v++) sum[i][v] += x * row[v];
        }
    }
    tn_finish(h, w, sum, c, ldc, add);
}

#else
TN_INLINE void tn_tile_body(int h, int w, ptrdiff_t kc, const float* a, ptrdiff_t a_row,
                            ptrdiff_t a_k, const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc,
                            int add, int ahead) {
    float sum[TN_MR][TN_NR] = {{0}};
    (void)ahead;
    for (ptrdiff_t k = 0; k < kc; k++)
        for (int i = 0; i < h; i++)
            for (int j = 0; j < w * TN_V; j++)
                sum[i][j] += a[i * a_row + k * a_k] * b[k * b_k + j];
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w * TN_V; j++)
            c[i * ldc + j] = add ? c[i * ldc + j] + sum[i][j] : sum[i][j];
}
#endif

/* The case a_row = 1 is compiled separately: the compiler then knows the addresses, and the numbers of
   A come from one cache line. Numbers of rows far apart contend for a bank of the cache. */
void tn_tile(int h, int width, ptrdiff_t kc, const float* a, ptrdiff_t a_row, ptrdiff_t a_k,
             const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc, int add) {
    if (a_row == 1 && width == TN_NR)
        TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, 1, a_k, b, b_k, c, ldc, add, 0)
    else if (width == TN_NR)
        TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, a_row, a_k, b, b_k, c, ldc, add, 0)
    else
        TN_ALL_HEIGHTS(tn_tile_body, 1, kc, a, a_row, a_k, b, b_k, c, ldc, add, 0)
}

/* Packed operands: for each k, TN_MR numbers of A (h of them used) and TN_NR of B. C is prefetched. */
static void tn_multiply_floats(int h, ptrdiff_t kc, const float* a, const float* b, float* c,
                               ptrdiff_t ldc, int add) {
    const ptrdiff_t a_row = 1, a_k = TN_MR, b_k = TN_NR;
    TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, a_row, a_k, b, b_k, c, ldc, add, 1)
}

/* y[k * width + i] = x[i * stride + k * k_stride] for the n rows that exist; what y has of others is not
   used. k must ascend: a register may be wider than a row of y, and the next k overwrites the surplus.
   Across, it reads as much of the next row of x; the last row ends it. */
TN_INLINE void tn_pack_floats(float* y, int width, tn_piece p) {
    const int copied = width < TN_V ? TN_V : width;
    ptrdiff_t whole = p.kc / TN_V;
    if (p.stride == 1 && (p.n == copied || (width < TN_V && p.k_stride >= TN_V))) {
        for (ptrdiff_t k = 0; k < p.kc - (p.n < copied); k++)
            memcpy(y + k * width, p.x + k * p.k_stride, copied * sizeof *y);
        if (p.n < copied)
            memcpy(y + (p.kc - 1) * width, p.x + (p.kc - 1) * p.k_stride, p.n * sizeof *y);
        return;
    }
    if (p.stride == 1) whole = 0;
    for (ptrdiff_t k = 0; k < whole * TN_V; k += TN_V)
        for (int i = 0; i < width; i += TN_V)
            tn_transpose(y + k * width + i, width, p.x + i * p.stride + k, p.stride, p.n - i);
    for (ptrdiff_t k = whole * TN_V; k < p.kc; k++)
        for (int i = 0; i < width; i++)
            y[k * width + i] = i < p.n ? p.x[i * p.stride + k * p.k_stride] : 0;
}

static void tn_pack_floats_a(float* y, const tn_piece* p) { tn_pack_floats(y, TN_MR, *p); }
static void tn_pack_floats_b(float* y, const tn_piece* p) { tn_pack_floats(y, TN_NR, *p); }

const tn_form tn_form_floats = {
    .number = 0, .terms = 1, .pass_terms = TN_KC, .group = TN_GROUP,
    .a = {.width = TN_MR, .step = TN_MR, .even = 1, .spare = TN_V, .pack = tn_pack_floats_a},
    .b = {.width = TN_NR, .step = TN_NR, .pack = tn_pack_floats_b},
    .multiply = tn_multiply_floats,
};
