/* The register tile for 8-bit codes, and how panels are rounded to codes. Panels have a quarter of the
   bytes of gemm.h's panels, and an instruction has four times the multiply-adds.

   The terms of a pass form one block of each row of A and each column of B. A block is rounded:
   x[k] = s q[k], q from -127 to 127, s = max |x| / 127. Then a pass adds to an element of C

       s t sum_k q[k] r[k]        s, q of its row of A; t, r of its column of B

   The sum is exact: it adds integers. A pass has 256 terms. Even with 1024 terms the sum would be
   below 2^24, so it converts to float32 without loss. Rounding changes each number by at most s /
   2. A block with NaN or infinity gives NaN; a block whose numbers are all below 1e-30 counts as
   zeros.

   dy is rounded up or down by chance, so it is right on average. Most numbers of dy are far below
   the largest of their block: rounding to the nearest code would make them all 0.

       q = nearest(x / s + u - 1/2)       u from 0 to 1, a hash of the number's row and term

   This changes a number by less than s, and leaves a 0 as it is. No code depends on threads.

   vpdpbusd multiplies four unsigned bytes by four signed bytes and adds the products to an int32. So
   the codes of B are stored as r + 128, and the sums begin at -128 sum_k q[k]. A quad holds the codes
   of terms 4 p .. 4 p + 3 in the 4 bytes of a float. A packed panel is an array of floats:

       A    TN_MR scales s | TN_MR times -128 sum_k q[k], int32 | quads of TN_MR rows, p after p
       B    TN_NR scales t | quads of TN_NR columns, p after p

   Only these functions are compiled for AVX512_VNNI or AVX_VNNI; the rest of the module is not.
   Their caller has checked that the CPU has the unit.
   Source: rounding by blocks with a scale as in Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339,
   section 2; the shift of one side by 128 as in Khudia et al. 2021, FBGEMM, arXiv:2101.05615; rounding
   of gradients by chance as in Gupta et al. 2015, arXiv:1502.02551; the hash is Wellons' lowbias32. */
#ifndef TOYNN_GEMM_INT8_H
#define TOYNN_GEMM_INT8_H

#include "dot_int8.h"
#include "pack_amx.h"

#if TN_UNITS == TN_AVX512_VNNI && defined(TN_SHUFFLES) && !TN_TILES
#define TN_QUADS 1
#define TN_VNNI __attribute__((target("avx512vnni")))
#elif TN_UNITS == TN_AVX_VNNI && defined(TN_SHUFFLES)
#define TN_QUADS 1
#define TN_VNNI __attribute__((target("avxvnni")))
#else
#define TN_QUADS 0 /* The functions below are never called: no Operand is packed in quads. */
#endif

/* Floats of a panel before its quads. */
enum { TN_QUADS_A = 2 * TN_MR, TN_QUADS_B = TN_NR };

/* Packed operands: h rows of A and TN_NR columns of B, with `quads` quads each. */
TN_LINKED void tn_tile_quads(int h, ptrdiff_t quads, const float* a, const float* b, float* c,
                             ptrdiff_t ldc, int add);

/* Round n rows of A, of kc contiguous terms, into a panel. Terms that do not exist get the code 0.
   If by_chance is set, `row` and k say which row and term of all of A the first ones are. */
TN_LINKED void tn_pack_quads_a(float* y, const float* x, ptrdiff_t n, ptrdiff_t stride, ptrdiff_t kc,
                               int by_chance, ptrdiff_t row, ptrdiff_t k);

/* The same for columns of B, to the nearest codes: x[i * stride + k * k_stride]. One of the strides
   is 1. */
TN_LINKED void tn_pack_quads_b(float* y, const float* x, ptrdiff_t n, ptrdiff_t stride,
                               ptrdiff_t k_stride, ptrdiff_t kc);

#endif
