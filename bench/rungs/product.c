/* The rungs of a product: C (M,N) = A (M,K) B (K,N), stored row by row, in float32.

   Read from the top: each function adds one idea to the one before. Whole tiles of MR x NR fill C,
   and whole blocks of KC terms fill a sum. V, MR and NR are those of toynn's own tile (gemm.h). */
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

#define V TN_V
#define MR TN_MR
#define NR TN_NR
#define KC 256
typedef ptrdiff_t size;

/* 1. The definition. */
void triple_loop(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    for (size m = 0; m < M; m++)
        for (size n = 0; n < N; n++) {
            float sum = 0;
            for (size k = 0; k < K; k++) sum += a[m * K + k] * b[k * N + n];
            c[m * N + n] = sum;
        }
}

/* 2. The inner loop runs along rows of B and C. */
void loop_order(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    memset(c, 0, M * N * sizeof(float));
    for (size m = 0; m < M; m++)
        for (size k = 0; k < K; k++)
            for (size n = 0; n < N; n++) c[m * N + n] += a[m * K + k] * b[k * N + n];
}

/* MR x NR elements of C: sums of K products of a[i * a_row + k * a_k] and b[k * b_k + j]. */
static void tile(float* c, size ldc, const float* a, size a_row, size a_k, const float* b, size b_k,
                 size K, int add) {
    tn_vec sum[MR][2];
    TN_UNROLL for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = (tn_vec){0};
    for (size k = 0; k < K; k++) {
        tn_vec b0 = tn_load(b + k * b_k), b1 = tn_load(b + k * b_k + V);
        TN_UNROLL for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i * a_row + k * a_k] * b0;
            sum[i][1] += a[i * a_row + k * a_k] * b1;
        }
    }
    TN_UNROLL for (int i = 0; i < MR; i++)
        TN_UNROLL for (int v = 0; v < 2; v++) {
            float* to = c + i * ldc + v * V;
            tn_store(to, add ? tn_load(to) + sum[i][v] : sum[i][v]);
        }
}

/* 3. The sums of a tile stay in registers. */
void register_tile(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    for (size m = 0; m < M; m += MR)
        for (size n = 0; n < N; n += NR)
            tile(c + m * N + n, N, a + m * K, K, 1, b + n, N, K, 0);
}

/* MR rows of A, or NR columns of B, in the order in which the tile reads them. */
static void pack_a(float* to, const float* a, size K, size terms) {
    for (size k = 0; k < terms; k++)
        for (size i = 0; i < MR; i++) to[k * MR + i] = a[i * K + k];
}

static void pack_b(float* to, const float* b, size N, size terms) {
    for (size k = 0; k < terms; k++) memcpy(to + k * NR, b + k * N, NR * sizeof(float));
}

/* 4. The tile reads one stream of memory for each side. */
void packed_panels(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    float* panels = aligned_alloc(64, M * K * sizeof(float));
    float* panel = aligned_alloc(64, K * NR * sizeof(float));
    for (size m = 0; m < M; m += MR) pack_a(panels + m * K, a + m * K, K, K);
    for (size n = 0; n < N; n += NR) {
        pack_b(panel, b + n, N, K);
        for (size m = 0; m < M; m += MR)
            tile(c + m * N + n, N, panels + m * K, 1, MR, panel, NR, K, 0);
    }
    free(panels);
    free(panel);
}

/* 5. KC terms at a time, so that the panels in use stay in the caches. */
void cache_blocks(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    float* panels = aligned_alloc(64, M * KC * sizeof(float));
    float* panel = aligned_alloc(64, KC * NR * sizeof(float));
    for (size k = 0; k < K; k += KC) {
        for (size m = 0; m < M; m += MR) pack_a(panels + m * KC, a + m * K + k, K, KC);
        for (size n = 0; n < N; n += NR) {
            pack_b(panel, b + k * N + n, N, KC);
            for (size m = 0; m < M; m += MR)
                tile(c + m * N + n, N, panels + m * KC, 1, MR, panel, NR, KC, k > 0);
        }
    }
    free(panels);
    free(panel);
}

/* 6. Threads share the panels of A, and each packs its own panels of B. */
void threads(float* c, const float* a, const float* b, size M, size N, size K, size threads) {
    float* panels = aligned_alloc(64, M * KC * sizeof(float));
    for (size k = 0; k < K; k += KC)
        #pragma omp parallel num_threads(threads)
        {
            float panel[KC * NR] __attribute__((aligned(64)));
            #pragma omp for
            for (size m = 0; m < M; m += MR) pack_a(panels + m * KC, a + m * K + k, K, KC);
            #pragma omp for
            for (size n = 0; n < N; n += NR) {
                pack_b(panel, b + k * N + n, N, KC);
                for (size m = 0; m < M; m += MR)
                    tile(c + m * N + n, N, panels + m * KC, 1, MR, panel, NR, KC, k > 0);
            }
        }
    free(panels);
}
