/* The tile kernel for AMX, and how its operands are packed: 32 x 32 sums in four tile registers.

   One instruction, TDPBF16PS, takes 16 rows of 32 terms of A and 32 terms of 16 columns of B, all
   bfloat16, and adds their products to 16 x 16 float32 sums (tiles_software.h says it in C). For
   floats there is no such instruction. But a float has 24 significant bits and a bfloat16 8, with
   the same exponents, so three of these make one of those:

       x = hi + mid + lo       hi = bf16(x)    mid = bf16(x - hi)    lo = bf16(x - hi - mid)

   Nothing is lost: both differences are exact. mid is up to 2^-8 of x, lo up to 2^-16, and

       x y = hi hi' + (hi mid' + mid hi') + (hi lo' + mid mid' + lo hi') + up to 2^-23 x y

   Six products of bfloat16, added up in float32, are as exact as one of floats, and tiles do them
   faster. Of two parts, hi and bf16(x - hi), three products leave out some 2^-16 x y; one of hi
   alone, 2^-7. Source: Henry, Tang & Heinecke 2019, arXiv:1904.06376.

   All this holds while no part and no product of parts underflows or overflows: tn_splits_exactly.

   A packed panel is a row of steps. A step has 32 terms of 32 rows of A, or of 32 columns of B: for
   each part two tiles, of 16 rows or columns each; then, if it has several parts, a line of 16 numbers
   whose largest is the largest magnitude of the step. Missing rows, columns and terms are 0. */
#ifndef TOYNN_GEMM_AMX_H
#define TOYNN_GEMM_AMX_H

#include <string.h>

#include "gemm_bf16.h"
#include "tiles.h"

#define TN_SIDE 32 /* rows, columns and terms of a step */
#define TN_TILE 256 /* floats, or pairs, of a tile */

/* Floats of a step. */
static inline ptrdiff_t tn_step(int parts) {
    return 2 * TN_TILE * parts + (parts > 1 ? 16 : 0);
}

#if TN_PAIRS && TN_HAS_TILES
#define TN_TILES 1

/* Tiles 0 1 / 2 3 are the sums, 4 / 5 a part of A, 6 7 a part of B. */
#define TN_A(part) tn_tile_load(4, a + 2 * TN_TILE * (part), 64); \
                   tn_tile_load(5, a + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_B(part) tn_tile_load(6, b + 2 * TN_TILE * (part), 64); \
                   tn_tile_load(7, b + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_MULTIPLY tn_tile_multiply(0, 4, 6); tn_tile_multiply(1, 4, 7); \
                    tn_tile_multiply(2, 5, 6); tn_tile_multiply(3, 5, 7);

/* C (32,32) (+)= packed A times packed B. Each product shares a part with the one before: so few
   tiles are loaded twice. Sums begin at 0 and join C at the end: a sum of 50257 terms added to C
   right away would be six times less exact. */
static inline void tn_multiply_tiles(int parts, ptrdiff_t steps, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {
    float sums[TN_SIDE * TN_SIDE], *to = add ? sums : c;
    const ptrdiff_t to_row = add ? TN_SIDE : ldc, step = tn_step(parts);
    for (int i = 0; i < TN_SIDE; i++) {
        TN_PREFETCH(c + i * ldc);
        TN_PREFETCH(c + i * ldc + 16);
    }
    __asm__ volatile("" ::: "memory"); /* GCC 12 does not know that loads of tiles read memory. */
    tn_tile_zero(0); tn_tile_zero(1); tn_tile_zero(2); tn_tile_zero(3);
    for (; steps > 0; steps--, a += step, b += step) {
        TN_A(0)
        switch (parts) {
        case 3:
            TN_B(2) TN_MULTIPLY  TN_B(1) TN_MULTIPLY  TN_A(1) TN_MULTIPLY
            TN_B(0) TN_MULTIPLY  TN_A(2) TN_MULTIPLY  TN_A(0) TN_MULTIPLY
            break;
        case 2:
            TN_B(1) TN_MULTIPLY  TN_B(0) TN_MULTIPLY  TN_A(1) TN_MULTIPLY
            break;
        default:
            TN_B(0) TN_MULTIPLY
        }
    }
    tn_tile_store(0, to, to_row * 4);
    tn_tile_store(1, to + 16, to_row * 4);
    tn_tile_store(2, to + 16 * to_row, to_row * 4);
    tn_tile_store(3, to + 16 * to_row + 16, to_row * 4);
    for (int i = 0; add && i < TN_SIDE; i++)
        for (int j = 0; j < TN_SIDE; j++) c[i * ldc + j] += sums[i * TN_SIDE + j];
}

/* 16 bfloat16 as floats. */
TN_INLINE __m512 tn_widened(__m256i x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}

/* 16 rows of A or columns of B by 32 terms, of which n and kc exist: one tile of each part. Along:
   the terms of each lie side by side, x_step apart from the next; else those of one term do.
   Returns the largest magnitudes, as bits, whose order is that of the numbers; NaN is above all. */
TN_INLINE TN_BF16 __m512i tn_pack_tile(float* y, int parts, int is_a, int along, const float* x,
                                       ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < 16; i++) {
        __m512 x0, x1; /* the terms of row i, or two terms of all rows */
        if (along) {
            const float* row = x + i * x_step;
            x0 = tn_first(row, i < n ? kc : 0);
            x1 = tn_first(row + 16, i < n ? kc - 16 : 0);
            tn_prefetch(row + 128, 128);
        } else {
            const float* term = x + 2 * i * x_step;
            x0 = tn_first(term, 2 * i < kc ? n : 0);
            x1 = tn_first(term + x_step, 2 * i + 1 < kc ? n : 0);
            tn_prefetch(term + 64 * x_step, 64);
            tn_prefetch(term + 65 * x_step, 64);
        }
        largest = _mm512_max_epu32(largest, (__m512i)_mm512_abs_ps(x0));
        largest = _mm512_max_epu32(largest, (__m512i)_mm512_abs_ps(x1));
        for (int part = 0; part < parts; part++) {
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(x1, x0);
            x0 -= tn_widened(_mm512_castsi512_si256(both));
            x1 -= tn_widened(_mm512_extracti64x4_epi64(both, 1));
            tn_store(y + 2 * TN_TILE * part + 16 * i,
                     (tn_vec)(along ? both : tn_interleaved(both)));
        }
    }
    for (int part = 0; along != is_a && part < parts; part++) {
        float* tile = y + 2 * TN_TILE * part;
        tn_transpose(tile, 16, tile, 16, 16);
    }
    return largest;
}

TN_INLINE TN_BF16 void tn_pack_steps(float* y, int parts, int is_a, int along, const float* x,
                                     ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    const ptrdiff_t second = along ? 16 * x_step : 16, next = along ? TN_SIDE : TN_SIDE * x_step;
    for (; kc > 0; kc -= TN_SIDE, x += next, y += tn_step(parts)) {
        const __m512i largest = _mm512_max_epu32(
            tn_pack_tile(y, parts, is_a, along, x, n, x_step, kc),
            tn_pack_tile(y + TN_TILE, parts, is_a, along, x + second, n - 16, x_step, kc));
        if (parts > 1) tn_store(y + 2 * TN_TILE * parts, (tn_vec)largest);
    }
}

/* A panel of n rows or columns, or some whole steps of it. One of the strides is 1. */
static inline void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                                 ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {
    if (k_stride == 1 && is_a) tn_pack_steps(y, parts, 1, 1, x, n, stride, kc);
    else if (k_stride == 1) tn_pack_steps(y, parts, 0, 1, x, n, stride, kc);
    else if (is_a) tn_pack_steps(y, parts, 1, 0, x, n, k_stride, kc);
    else tn_pack_steps(y, parts, 0, 0, x, n, k_stride, kc);
}

/* The largest magnitude in a packed panel of several parts; NaN if there is one. */
static inline float tn_largest(int parts, ptrdiff_t steps, const float* panel) {
    __m512i largest = _mm512_setzero_si512();
    for (ptrdiff_t s = 1; s <= steps; s++)
        largest = _mm512_max_epu32(largest, (__m512i)tn_load(panel + s * tn_step(parts) - 16));
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether two packed panels may be multiplied by parts. What is lost of a part or a product of
   parts lies below 2^-126: 2^-60 of the largest number, 2^-46 of the largest product. And 2^26
   products may be added up. Small numbers beside large ones do no harm: only the largest counts. */
static inline int tn_splits_exactly(int parts, ptrdiff_t steps, const float* a, const float* b) {
    const float x = tn_largest(parts, steps, a), y = tn_largest(parts, steps, b);
    if (x == 0 || y == 0) return x <= 0x1p126f && y <= 0x1p126f;
    return x >= 0x1p-66f && x <= 0x1p126f && y >= 0x1p-66f && y <= 0x1p126f
        && x * y >= 0x1p-80f && x * y <= 0x1p100f;
}

#else
/* Never called: no Operand is packed for tiles where there are none. */
#define TN_TILES 0
static inline void tn_multiply_tiles(int parts, ptrdiff_t steps, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {}
static inline void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                                 ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {}
static inline int tn_splits_exactly(int parts, ptrdiff_t steps, const float* a, const float* b) {
    return 1;
}
#endif

#endif
