/* Registers of 16 floats, and of 16 pairs of bfloat16: what gemm_bf16.c and gemm_amx.c share. */
#ifndef TOYNN_BF16_H
#define TOYNN_BF16_H

#include <immintrin.h>

#include "forms.h"

/* The first n of 16 lanes. */
TN_INLINE __mmask16 tn_mask(ptrdiff_t n) { return n >= 16 ? 0xFFFF : n > 0 ? (1 << n) - 1 : 0; }

/* The first n of 16 floats; the others count as 0, and are not read. */
TN_INLINE __m512 tn_first(const float* x, ptrdiff_t n) {
    return _mm512_maskz_loadu_ps(tn_mask(n), x);
}

/* Reorder the 32 halves of a register to 0 16 1 17 2 18 ..: two terms of 16 columns, in pairs. */
TN_INLINE __m512i tn_interleaved(__m512i both) {
    const __m512i column = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i lanes = _mm512_or_si512(
        column, _mm512_slli_epi32(_mm512_add_epi32(column, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(lanes, both);
}

#endif
