/* The tile kernel for AMX: 32 x 32 sums in four tile registers. Packing is in pack_amx.h.

   One instruction, TDPBF16PS, takes 16 rows of 32 terms of A and 32 terms of 16 columns of B, all
   bfloat16, and adds their products to 16 x 16 float32 sums (tiles_software.h says it in C). For
   floats there is no such instruction. But a float has 24 significant bits and a bfloat16 8, with
   the same exponents, so three of these make one of those:

       x = hi + mid + lo       hi = bf16(x)    mid = bf16(x - hi)    lo = bf16(x - hi - mid)

   Rounding is to nearest, of several parts ties away from 0, which costs less; a single part is
   rounded as the CPU does, ties to even. Nothing is lost: both differences are exact. mid is up to
   2^-8 of x, lo up to 2^-16, and

       x y = hi hi' + (hi mid' + mid hi') + (hi lo' + mid mid' + lo hi') + up to 2^-23 x y

   Six products of bfloat16, added up in float32, are as exact as one of floats, and tiles do them
   faster. Of two parts, hi and bf16(x - hi), three products leave out some 2^-16 x y; one of hi
   alone, 2^-7. Source: Henry, Tang & Heinecke 2019, arXiv:1904.06376.

   All this holds while no part and no product of parts underflows or overflows: tn_splits_exactly. */
#ifndef TOYNN_GEMM_AMX_H
#define TOYNN_GEMM_AMX_H

#include <string.h>

#include "pack_amx.h"

#if TN_TILES

/* Eight tiles of 16 rows: the sums of 32 x 32, and beside them one part of A and one of B.

                      B   6 | 7
              A   4     0 | 1
                  5     2 | 3

   A packed step holds the parts of its floats in this order, each in two tiles. */
enum { TN_HI, TN_MID, TN_LO };
#define TN_LOAD_A(part) tn_tile_load(4, a + 2 * TN_TILE * (part), 64); \
                        tn_tile_load(5, a + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_LOAD_B(part) tn_tile_load(6, b + 2 * TN_TILE * (part), 64); \
                        tn_tile_load(7, b + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_MULTIPLY tn_tile_multiply(0, 4, 6); tn_tile_multiply(1, 4, 7); \
                    tn_tile_multiply(2, 5, 6); tn_tile_multiply(3, 5, 7);

/* C (32,32) (+)= packed A times packed B. Small products come first, and each product shares a part
   with the one before, so that few tiles are loaded twice. Sums begin at 0 and join C at the end: a
   sum of 50257 terms added to C right away would be six times less exact. */
TN_INLINE void tn_multiply_parts(int parts, ptrdiff_t steps, const float* a, const float* b,
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
        TN_LOAD_A(TN_HI)
        switch (parts) {
        case 3:
            TN_LOAD_B(TN_LO)  TN_MULTIPLY /* hi  * lo'  */
            TN_LOAD_B(TN_MID) TN_MULTIPLY /* hi  * mid' */
            TN_LOAD_A(TN_MID) TN_MULTIPLY /* mid * mid' */
            TN_LOAD_B(TN_HI)  TN_MULTIPLY /* mid * hi'  */
            TN_LOAD_A(TN_LO)  TN_MULTIPLY /* lo  * hi'  */
            TN_LOAD_A(TN_HI)  TN_MULTIPLY /* hi  * hi'  */
            break;
        case 2:
            TN_LOAD_B(TN_MID) TN_MULTIPLY /* hi  * mid' */
            TN_LOAD_B(TN_HI)  TN_MULTIPLY /* hi  * hi'  */
            TN_LOAD_A(TN_MID) TN_MULTIPLY /* mid * hi'  */
            break;
        case 1:
            TN_LOAD_B(TN_HI)  TN_MULTIPLY /* hi  * hi'  */
            break;
        }
    }
    tn_tile_store(0, to, to_row * 4);
    tn_tile_store(1, to + 16, to_row * 4);
    tn_tile_store(2, to + 16 * to_row, to_row * 4);
    tn_tile_store(3, to + 16 * to_row + 16, to_row * 4);
    for (int i = 0; add && i < TN_SIDE; i++)
        for (int j = 0; j < TN_SIDE; j++) c[i * ldc + j] += sums[i * TN_SIDE + j];
}

static inline void tn_multiply_tiles(int parts, ptrdiff_t steps, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {
    switch (parts) {
    case 3: tn_multiply_parts(3, steps, a, b, c, ldc, add); break;
    case 2: tn_multiply_parts(2, steps, a, b, c, ldc, add); break;
    case 1: tn_multiply_parts(1, steps, a, b, c, ldc, add); break;
    }
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
static inline void tn_multiply_tiles(int parts, ptrdiff_t steps, const float* a, const float* b,
                                     float* c, ptrdiff_t ldc, int add) {}
static inline int tn_splits_exactly(int parts, ptrdiff_t steps, const float* a, const float* b) {
    return 1;
}
#endif

#endif
