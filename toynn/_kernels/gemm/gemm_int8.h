/* The forms of 8-bit codes: how panels are rounded to codes, and what their tiles share. Panels have a
   quarter of the bytes of panels of floats, and an instruction has four times the multiply-adds.

   The terms of a pass form one block of each row of A and each column of B. A block is rounded:
   x[k] = s q[k], q from -128 to 127, s = max |x| / 127. Then a pass adds to an element of C

       s t sum_k q[k] r[k]        s, q of its row of A; t, r of its column of B

   The sum is exact: it adds integers. A pass has 256 terms. Even with 1024 terms the sum would be
   below 2^24, so it converts to float32 without loss. Rounding changes each number by at most s /
   2. A block with NaN or infinity gives NaN; a block whose numbers are all below 1e-30 counts as
   zeros.

   dy is rounded up or down by chance, so it is right on average. Most numbers of dy are far below
   the largest of their block: rounding to the nearest code would make them all 0.

       q = nearest(x / s + u - 1/2)       u from 0 to 1, a hash of the number's row and term

   This changes a number by less than s, and leaves a 0 as it is. No code depends on threads.

   A packed panel is an array of floats. `width` rows of A or columns of B make a panel:

       A    width scales s | width int32, where the sums begin | steps of codes
       B    width scales t | steps of codes

   A word is the 4 bytes of a float. A step of 4 terms has one or two words of each row or column:
   first one of each, then the other. The unit that multiplies (numbered as in dot_int8.h; 2 is the
   tiles of AMX) decides:

       unit           words of a step       a word           codes of B    the sums begin at
       0  vpmaddwd    2: terms 0 2, 1 3     2 of 16 bits     r             0
       1  vpdpbusd    1                     4 of 8 bits      r + 128       -128 sum_k q[k]
       2  TDPBSSD     16, for 64 terms      4 of 8 bits      r             0
       1  sdot        2, for 8 terms        4 of 8 bits      r             0
       2  smmla       2, for 8 terms        4 of 8 bits      r             0

   For TDPBSSD a panel of A has 32 rows, and a step of A has the 16 words of row after row. So have
   both sides for smmla, with 2 words.

   vpdpbusd adds four products of unsigned by signed bytes to an int32. vpmaddwd, which every CPU with
   AVX2 has, adds two products of 16 bits in 32 bits, and vpaddd adds them up. Nothing overflows or
   saturates: |q| and |r| are at most 128, so the sum of two products is at most 2^15. vpmaddubsw would
   take bytes, but its sums of two products have 16 bits, and 255 * 127 * 2 has not: it needs the signs
   of one side moved to the other, and vpmaddwd after it. On Zen 4 that made 65 billion multiply-adds
   a second; vpmaddwd alone makes 85, and float32 makes 57.

   The sums are exact, and what follows them is the same code. So all units give the same bits. Only
   gemm_int8_tile.h is compiled for AVX512_VNNI or AVX_VNNI; the rest of the module is not. Its caller
   has checked that the CPU has the unit.
   Source: rounding by blocks with a scale as in Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339,
   section 2; the shift of one side by 128 as in Khudia et al. 2021, FBGEMM, arXiv:2101.05615; rounding
   of gradients by chance as in Gupta et al. 2015, arXiv:1502.02551; the hash is Wellons' lowbias32. */
#ifndef TOYNN_GEMM_INT8_H
#define TOYNN_GEMM_INT8_H

#include "forms.h"

#if TN_CODE_UNITS
#if TN_INT8 == 2
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

typedef int tn_ints __attribute__((vector_size(4 * TN_V)));

/* x y + z, rounded once. */
TN_INLINE tn_vec tn_fused(tn_vec x, tn_vec y, tn_vec z) {
#if TN_V == 16
    return (tn_vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif TN_V == 8
    return (tn_vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
    return (tn_vec)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#endif
}

/* How a tile of codes ends: h rows of sums times the scales before panels a and b. */
TN_INLINE void tn_finish_codes(int h, tn_ints sum[][2], const float* a, const float* b, float* c,
                               ptrdiff_t ldc, int add) {
    const tn_vec t[2] = {tn_load(b), tn_load(b + TN_V)};
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < 2; v++) {
            float* at = c + i * ldc + v * TN_V;
            const tn_vec whole = __builtin_convertvector(sum[i][v], tn_vec);
            tn_store(at, tn_fused(whole, a[i] * t[v], add ? tn_load(at) : (tn_vec){0}));
        }
    }
}

/* Rounding for TDPBSSD, which gemm_amx.c multiplies by. */
TN_LINKED void tn_pack_codes_2_a(float* y, const tn_piece* p);
TN_LINKED void tn_pack_codes_2_a_by_chance(float* y, const tn_piece* p);
TN_LINKED void tn_pack_codes_2_b(float* y, const tn_piece* p);
#endif

#endif
