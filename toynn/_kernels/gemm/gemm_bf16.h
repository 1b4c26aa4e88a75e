/* The register tile for pairs of bfloat16, and how they are packed: half the bytes of gemm.h's
   panels, and twice the multiply-adds per instruction.

   A pair holds terms 2 p and 2 p + 1 of a sum, the first in the lower half, in the 4 bytes of a
   float: a packed panel of pairs looks like one of floats with half as many terms. vdpbf16ps adds
   both products of a pair to a float32 sum. Rounding is to nearest, ties to even; NaN stays NaN,
   infinities stay; subnormals count as 0. AVX512_BF16 is asked for by these functions alone, not by
   the module: whoever calls them has made sure that the CPU has it.
   Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. */
#ifndef TOYNN_GEMM_BF16_H
#define TOYNN_GEMM_BF16_H

#include "gemm.h"

#if defined(__AVX512F__) && defined(TN_SHUFFLES)
#define TN_PAIRS 1
#define TN_BF16 __attribute__((target("avx512bf16")))
#else
#define TN_PAIRS 0 /* What follows is never called: no Operand is packed in pairs. */
#endif

/* Packed operands: for each pair of terms, TN_MR pairs of A (h of them used) and TN_NR of B. */
TN_LINKED void tn_tile_pairs(int h, ptrdiff_t pairs, const float* a, const float* b, float* c,
                             ptrdiff_t ldc, int add);

/* The pair y[p * width + i] = x[i * stride + k * k_stride] for k = 2 p, 2 p + 1, rounded; 0 for the
   columns and the term that do not exist. One of the strides is 1. */
TN_LINKED void tn_pack_pairs(float* y, int width, const float* x, ptrdiff_t n, ptrdiff_t stride,
                             ptrdiff_t k_stride, ptrdiff_t kc);

#endif
