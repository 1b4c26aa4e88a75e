/* How the sides of a product are packed for the tiles of AMX, as parts of bfloat16 (gemm_amx.h).

   A packed panel is a sequence of steps. A step has 32 terms of 32 rows of A, or of 32 columns of B.
   It holds two tiles for each part, of 16 rows or columns each. If there are several parts, 16 numbers
   follow whose largest is the largest magnitude of the step. Missing rows, columns and terms are 0. */
#ifndef TOYNN_PACK_AMX_H
#define TOYNN_PACK_AMX_H

#include "gemm_bf16.h"
#include "tiles.h"

#define TN_SIDE 32 /* rows, columns and terms of a step */
#define TN_TILE 256 /* floats, or pairs, of a tile */

/* Floats of a step. */
static inline ptrdiff_t tn_step(int parts) {
    return 2 * TN_TILE * parts + (parts > 1 ? 16 : 0);
}

/* Whether this build has tiles. If not, no Operand is packed for them: no one calls tn_pack_tiles. */
#if TN_PAIRS && TN_HAS_TILES
#define TN_TILES 1
#else
#define TN_TILES 0
#endif

/* Pack a panel of n rows or columns, or some whole steps of it. One of the strides is 1. */
TN_LINKED void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                             ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc);

#endif
