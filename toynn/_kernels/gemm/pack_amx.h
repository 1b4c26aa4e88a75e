/* How the sides of a product are packed for the tiles of AMX, as parts of bfloat16 (gemm_amx.h).

   A packed panel is a row of steps. A step has 32 terms of 32 rows of A, or of 32 columns of B: for
   each part two tiles, of 16 rows or columns each; then, if it has several parts, a line of 16 numbers
   whose largest is the largest magnitude of the step. Missing rows, columns and terms are 0. */
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

#if TN_PAIRS && TN_HAS_TILES
#define TN_TILES 1

/* Round to bfloat16, ties away from 0, and keep a float: two instructions, and the difference is
   exact, as with ties to even. Infinity stays; NaN may not, but its block is multiplied as floats. */
TN_INLINE __m512i tn_upper(__m512 x) {
    return _mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000));
}

/* The upper halves of b, with those of a below them. */
TN_INLINE __m512i tn_paired(__m512i a, __m512i b) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    return _mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xCA);
}

/* A register of each part: pairs of x0 and x1, lane by lane. */
TN_INLINE void tn_split(float* y, int parts, __m512 x0, __m512 x1) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    TN_UNROLL for (int part = 0; part < parts; part++) {
        const __m512i h0 = tn_upper(x0), h1 = tn_upper(x1);
        tn_store(y + 2 * TN_TILE * part, (tn_vec)tn_paired(h0, h1));
        x0 -= (__m512)_mm512_and_si512(h0, upper);
        x1 -= (__m512)_mm512_and_si512(h1, upper);
    }
}

/* 16 floats from x on, of which n exist, or all. */
TN_INLINE __m512 tn_terms(const float* x, int whole, ptrdiff_t n) {
    return whole ? _mm512_loadu_ps(x) : tn_first(x, n);
}

TN_INLINE __m512i tn_larger(__m512i most, __m512 x) {
    return _mm512_max_epu32(most, (__m512i)_mm512_abs_ps(x));
}

/* Of 16 rows of A or columns of B by 16 terms, of which n and kc exist, the i-th register: along, the
   terms of the i-th; across, the i-th term of all. The same terms of the next panel, or the rows of
   the next step, are asked for. */
TN_INLINE __m512 tn_half(int i, int along, int whole, const float* x, ptrdiff_t n,
                         ptrdiff_t x_step, ptrdiff_t kc) {
    const float* at = x + i * x_step;
    tn_prefetch(at + TN_SIDE * x_step, 64);
    return along ? tn_terms(at, whole, i < n ? kc : 0) : tn_terms(at, whole, i < kc ? n : 0);
}

/* 16 rows of A or columns of B by 32 terms, of which n and kc exist, or all of them: one tile of each
   of several parts. Along: the terms of each lie side by side, x_step apart from the next; else those
   of one term do. Which terms make a pair is free if both sides agree: p and p + 16, so that a part
   is made of two registers lane by lane. Floats are transposed before they are split.
   Returns the largest magnitudes, as bits, whose order is that of the numbers; NaN is above all. */
TN_INLINE __m512i tn_split_tile(float* y, int parts, int is_a, int along, int whole,
                                const float* x, ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    const float* second = x + (along ? 16 : 16 * x_step);
    __m512i most = _mm512_setzero_si512();
    tn_vec r0[16], r1[16];
    TN_UNROLL for (int i = 0; i < 16; i++) {
        const __m512 x0 = tn_half(i, along, whole, x, n, x_step, kc);
        const __m512 x1 = tn_half(i, along, whole, second, n, x_step, kc - 16);
        most = tn_larger(tn_larger(most, x0), x1);
        if (along == is_a) {
            tn_split(y + 16 * i, parts, x0, x1);
        } else {
            r0[i] = (tn_vec)x0;
            r1[i] = (tn_vec)x1;
        }
    }
    if (along == is_a) return most;
    tn_exchange(r0);
    tn_exchange(r1);
    TN_UNROLL for (int i = 0; i < 16; i++) tn_split(y + 16 * i, parts, (__m512)r0[i], (__m512)r1[i]);
    return most;
}

/* The same of one part: pairs of terms 2 p and 2 p + 1, as the CPU rounds them, ties to even. */
TN_INLINE TN_BF16 void tn_round_tile(float* y, int is_a, int along, int whole, const float* x,
                                     ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    tn_vec r[16];
    TN_UNROLL for (int i = 0; i < 16; i++) {
        const float* at = x + (along ? i : 2 * i) * x_step;
        __m512 x0, x1; /* the terms of row i, or two terms of all rows */
        if (along) {
            x0 = tn_terms(at, whole, i < n ? kc : 0);
            x1 = tn_terms(at + 16, whole, i < n ? kc - 16 : 0);
        } else {
            x0 = tn_terms(at, whole, 2 * i < kc ? n : 0);
            x1 = tn_terms(at + x_step, whole, 2 * i + 1 < kc ? n : 0);
        }
        tn_prefetch(at + TN_SIDE * x_step, along ? 128 : 64);
        if (!along) tn_prefetch(at + (TN_SIDE + 1) * x_step, 64);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(x1, x0);
        r[i] = (tn_vec)(along ? both : tn_interleaved(both));
    }
    if (along != is_a) tn_exchange(r);
    TN_UNROLL for (int i = 0; i < 16; i++) tn_store(y + 16 * i, r[i]);
}

/* A step: two tiles of each part, and what is largest in it. */
TN_INLINE TN_BF16 void tn_pack_step(float* y, int parts, int is_a, int along, int whole,
                                    const float* x, ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    const float* next = x + (along ? 16 * x_step : 16);
    if (parts == 1) {
        tn_round_tile(y, is_a, along, whole, x, n, x_step, kc);
        tn_round_tile(y + TN_TILE, is_a, along, whole, next, n - 16, x_step, kc);
        return;
    }
    const __m512i most = _mm512_max_epu32(
        tn_split_tile(y, parts, is_a, along, whole, x, n, x_step, kc),
        tn_split_tile(y + TN_TILE, parts, is_a, along, whole, next, n - 16, x_step, kc));
    tn_store(y + 2 * TN_TILE * parts, (tn_vec)most);
}

TN_INLINE TN_BF16 void tn_pack_steps(float* y, int parts, int is_a, int along, const float* x,
                                     ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {
    const ptrdiff_t next = along ? TN_SIDE : TN_SIDE * x_step;
    for (; kc > 0; kc -= TN_SIDE, x += next, y += tn_step(parts)) {
        if (n >= TN_SIDE && kc >= TN_SIDE)
            tn_pack_step(y, parts, is_a, along, 1, x, n, x_step, kc);
        else
            tn_pack_step(y, parts, is_a, along, 0, x, n, x_step, kc);
    }
}

/* A panel of n rows or columns, or some whole steps of it. One of the strides is 1. */
TN_INLINE TN_BF16 void tn_pack_parts(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                                     ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {
    if (k_stride == 1 && is_a) tn_pack_steps(y, parts, 1, 1, x, n, stride, kc);
    else if (k_stride == 1) tn_pack_steps(y, parts, 0, 1, x, n, stride, kc);
    else if (is_a) tn_pack_steps(y, parts, 1, 0, x, n, k_stride, kc);
    else tn_pack_steps(y, parts, 0, 0, x, n, k_stride, kc);
}

/* How many parts is known to the compiler in each: their loops are unrolled. */
TN_BF16 static inline void tn_pack_tiles(float* y, int parts, int is_a, const float* x,
                                         ptrdiff_t n, ptrdiff_t stride, ptrdiff_t k_stride,
                                         ptrdiff_t kc) {
    switch (parts) {
    case 3: tn_pack_parts(y, 3, is_a, x, n, stride, k_stride, kc); break;
    case 2: tn_pack_parts(y, 2, is_a, x, n, stride, k_stride, kc); break;
    case 1: tn_pack_parts(y, 1, is_a, x, n, stride, k_stride, kc); break;
    }
}

#else
/* Never called: no Operand is packed for tiles where there are none. */
#define TN_TILES 0
static inline void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                                 ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {}
#endif

#endif
