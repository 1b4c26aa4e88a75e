/* The register tile for pairs of bfloat16, and how pairs are packed. Panels have half the bytes of
   gemm.h's panels, and an instruction has at least twice the multiply-adds.

   A pair holds two terms of a sum, 2 p and 2 p + 1, in the 4 bytes of a float. The first term is in
   the lower half. So a packed panel of pairs looks like a panel of floats with half as many terms.
   vdpbf16ps adds both products of a pair to a float32 sum. On arm64 bfmmla multiplies 2 rows of two
   pairs by 2 columns (gemm_neon.c). Rounding is to nearest, ties to even. NaN and infinities stay;
   subnormals count as 0. Only these functions are compiled for AVX512_BF16 or FEAT_BF16; the rest
   of the module is not. Their caller has checked that the CPU has the unit.
   Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. */
#ifndef TOYNN_GEMM_BF16_H
#define TOYNN_GEMM_BF16_H

#include "gemm.h"

#if defined(__AVX512F__) && defined(TN_SHUFFLES)
#define TN_PAIRS 1
#define TN_BF16 __attribute__((target("avx512bf16")))
#elif defined(TN_NEON) && TN_ARM_UNITS
#define TN_PAIRS 2
#define TN_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#else
#define TN_PAIRS 0 /* The functions below are never called: no Operand is packed in pairs. */
#endif

/* Pairs of a step: contiguous pairs of a row or column. */
#define TN_STEP_PAIRS (TN_PAIRS ? TN_PAIRS : 1)

/* Packed operands: for each step, the pairs of TN_MR rows of A (h of them used) and of TN_NR columns
   of B. */
TN_LINKED void tn_tile_pairs(int h, ptrdiff_t steps, const float* a, const float* b, float* c,
                             ptrdiff_t ldc, int add);

/* Pack n rows or columns of kc terms, in steps of S pairs. Pair p of row or column i is
   y[(p / S * width + i) * S + p % S]. It holds x[i * stride + k * k_stride], k = 2 p and 2 p + 1,
   rounded. Terms that do not exist are 0. Pairs of rows or columns that do not exist are not used.
   One of the strides is 1. */
TN_LINKED void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n, ptrdiff_t stride,
                             ptrdiff_t k_stride, ptrdiff_t kc);

#endif
