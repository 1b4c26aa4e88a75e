/* Loops that do one thing as fast as a core can: the peaks that kernels are measured against.

   TN_CHAINS sums stay in registers, and the loop adds to them in turn. An addition takes about 4
   cycles and two start per cycle, so 8 or more independent sums keep the pipelines full. */
#ifndef TOYNN_PEAKS_H
#define TOYNN_PEAKS_H

#include "forms.h"
#include "tiles.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define TN_CHAINS 24  /* of 32 registers */
#else
#define TN_CHAINS 12  /* of 16 */
#endif

#if TN_GNU
#define TN_UNROLL_ALL _Pragma("GCC unroll 24")

TN_INLINE tn_vec tn_all(float x) { return x - (tn_vec){0}; }

TN_INLINE float tn_total(const tn_vec sum[TN_CHAINS]) {
    float total = 0;
    for (int i = 0; i < TN_CHAINS; i++)
        for (int j = 0; j < TN_V; j++) total += sum[i][j];
    return total;
}

/* s[i] = s[i] x + y in registers, from s[i] = i, `rounds` times; returns the sum of all. */
static inline float tn_multiply_adds(ptrdiff_t rounds, float x, float y) {
    tn_vec sum[TN_CHAINS];
    const tn_vec xs = tn_all(x), ys = tn_all(y);
    TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++) sum[i] = tn_all(i);  /* no two alike */
    for (ptrdiff_t round = 0; round < rounds; round++)
        TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++) sum[i] = sum[i] * xs + ys;
    return tn_total(sum);
}

/* The sum of n floats, `repeats` times. All repeats add to the same sums, so each must read x. */
static inline float tn_read(const float* x, ptrdiff_t n, ptrdiff_t repeats) {
    tn_vec sum[8] = {{0}};
    float rest = 0;
    for (ptrdiff_t r = 0; r < repeats; r++) {
        ptrdiff_t i = 0;
        for (; i + 8 * TN_V <= n; i += 8 * TN_V)
            TN_UNROLL for (int j = 0; j < 8; j++) sum[j] += tn_load(x + i + j * TN_V);
        for (; i < n; i++) rest += x[i];
    }
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < TN_V; k++) rest += sum[j][k];
    return rest;
}

#else
/* Plain C, as fast as the compiler makes it. */
static inline float tn_multiply_adds(ptrdiff_t rounds, float x, float y) {
    float sum[TN_CHAINS * TN_V], total = 0;
    for (int i = 0; i < TN_CHAINS * TN_V; i++) sum[i] = i / TN_V;
    for (ptrdiff_t round = 0; round < rounds; round++)
        for (int i = 0; i < TN_CHAINS * TN_V; i++) sum[i] = sum[i] * x + y;
    for (int i = 0; i < TN_CHAINS * TN_V; i++) total += sum[i];
    return total;
}

static inline float tn_read(const float* x, ptrdiff_t n, ptrdiff_t repeats) {
    float sum[16] = {0}, total = 0;
    for (ptrdiff_t r = 0; r < repeats; r++)
        for (ptrdiff_t i = 0; i < n; i++) sum[i % 16] += x[i];
    for (int i = 0; i < 16; i++) total += sum[i];
    return total;
}
#endif

#define TN_PAIR_FLOPS (4 * TN_PAIRS) /* per instruction and sum */

#if TN_PAIRS == 1
#include <immintrin.h>

/* s[i] += x[0] x[0] + x[1] x[1] for a pair of bfloat16, from s[i] = i. */
TN_BF16 static inline float tn_multiply_pairs(ptrdiff_t rounds, float pair) {
    tn_vec sum[TN_CHAINS];
    const __m512bh x = (__m512bh)_mm512_set1_ps(pair);
    TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++) sum[i] = tn_all(i);
    for (ptrdiff_t round = 0; round < rounds; round++)
        TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++)
            sum[i] = (tn_vec)_mm512_dpbf16_ps((__m512)sum[i], x, x);
    return tn_total(sum);
}
#elif TN_PAIRS
#include <arm_neon.h>

/* The same with two pairs per sum: bfmmla multiplies one row by one column for each sum. */
TN_BF16 static inline float tn_multiply_pairs(ptrdiff_t rounds, float pair) {
    tn_vec sum[TN_CHAINS];
    const bfloat16x8_t x = vreinterpretq_bf16_f32(vdupq_n_f32(pair));
    TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++) sum[i] = tn_all(i);
    for (ptrdiff_t round = 0; round < rounds; round++)
        TN_UNROLL_ALL for (int i = 0; i < TN_CHAINS; i++)
            sum[i] = (tn_vec)vbfmmlaq_f32((float32x4_t)sum[i], x, x);
    return tn_total(sum);
}
#else
/* Never called: limits.pyx refuses first. */
static inline float tn_multiply_pairs(ptrdiff_t rounds, float pair) { return 0; }
#endif

#if TN_HAS_TILES
/* Four tiles of sums, from 0, += A B for tiles A and B filled with `pair`; returns their total. */
static inline float tn_multiply_in_tiles(ptrdiff_t rounds, float pair) {
    float tile[256], total = 0;
    for (int i = 0; i < 256; i++) tile[i] = pair;
    tn_tiles_begin();
    __asm__ volatile("" ::: "memory");
    tn_tile_load(4, tile, 64); tn_tile_load(5, tile, 64);
    tn_tile_load(6, tile, 64); tn_tile_load(7, tile, 64);
    tn_tile_zero(0); tn_tile_zero(1); tn_tile_zero(2); tn_tile_zero(3);
    for (ptrdiff_t round = 0; round < rounds; round++) {
        tn_tile_multiply(0, 4, 6); tn_tile_multiply(1, 4, 7);
        tn_tile_multiply(2, 5, 6); tn_tile_multiply(3, 5, 7);
    }
#define TN_ADD_TILE(t) tn_tile_store(t, tile, 64); \
                       for (int i = 0; i < 256; i++) total += tile[i];
    TN_ADD_TILE(0) TN_ADD_TILE(1) TN_ADD_TILE(2) TN_ADD_TILE(3)
    tn_tiles_end();
    return total;
}
#else
/* Never called: limits.pyx refuses first. */
static inline float tn_multiply_in_tiles(ptrdiff_t rounds, float pair) { return 0; }
#endif

#endif
