/* The register tile of gemm.h. */
#include "gemm.h"

#if defined(__GNUC__)
#define TN_TWICE _Pragma("GCC unroll 2")

TN_INLINE void tn_tile_body(int h, int w, ptrdiff_t kc, const float* a, ptrdiff_t a_row,
                            ptrdiff_t a_k, const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc,
                            int add, int ahead) {
    tn_vec sum[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < w; v++) {
            sum[i][v] = (tn_vec){0};
            if (ahead) TN_PREFETCH(c + i * ldc + v * TN_V);
        }
    }
    TN_TWICE for (ptrdiff_t k = 0; k < kc; k++) {
        tn_vec row[2];
        TN_UNROLL for (int v = 0; v < w; v++) row[v] = tn_load(b + k * b_k + v * TN_V);
        TN_UNROLL for (int i = 0; i < h; i++) {
            const float x = a[i * a_row + k * a_k];
            TN_UNROLL for (int v = 0; v < w; v++) sum[i][v] += x * row[v];
        }
    }
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < w; v++) {
            float* at = c + i * ldc + v * TN_V;
            tn_store(at, add ? tn_load(at) + sum[i][v] : sum[i][v]);
        }
    }
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

/* Rows of A that are side by side are at addresses that the compiler knows: numbers from one line,
   while those of rows far apart contend for a bank of the cache. */
void tn_tile(int h, int width, ptrdiff_t kc, const float* a, ptrdiff_t a_row, ptrdiff_t a_k,
             const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc, int add) {
    if (a_row == 1 && width == TN_NR)
        TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, 1, a_k, b, b_k, c, ldc, add, 0)
    else if (width == TN_NR)
        TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, a_row, a_k, b, b_k, c, ldc, add, 0)
    else
        TN_ALL_HEIGHTS(tn_tile_body, 1, kc, a, a_row, a_k, b, b_k, c, ldc, add, 0)
}

void tn_tile_packed(int h, ptrdiff_t kc, const float* a, const float* b, float* c, ptrdiff_t ldc,
                    int add) {
    const ptrdiff_t a_row = 1, a_k = TN_MR, b_k = TN_NR;
    TN_ALL_HEIGHTS(tn_tile_body, 2, kc, a, a_row, a_k, b, b_k, c, ldc, add, 1)
}
