/* The packing of pack_amx.h. */
#include "pack_amx.h"

#if TN_TILES
#include "bf16.h"

/* Round to bfloat16, ties away from 0. The result is the upper half; the caller masks out the rest.
   Both take two instructions. The difference to x is exact, as with ties to even. Infinity stays
   infinity. NaN may not stay NaN, but a tile with NaN is multiplied as floats. */
TN_INLINE __m512i tn_upper(__m512 x) {
    return _mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000));
}

/* The upper halves of b, with the upper halves of a below them. */
TN_INLINE __m512i tn_paired(__m512i a, __m512i b) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    return _mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xCA);
}

/* Store one register for each part: pairs of x0 and x1, lane by lane. */
TN_INLINE void tn_split(float* y, int parts, __m512 x0, __m512 x1) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    TN_UNROLL for (int part = 0; part < parts; part++) {
        const __m512i h0 = tn_upper(x0), h1 = tn_upper(x1);
        tn_store(y + 2 * TN_TILE * part, (tn_vec)tn_paired(h0, h1));
        x0 -= (__m512)_mm512_and_si512(h0, upper);
        x1 -= (__m512)_mm512_and_si512(h1, upper);
    }
}

/* 16 floats from x on; n of them exist, or all if `whole`. */
TN_INLINE __m512 tn_terms(const float* x, int whole, ptrdiff_t n) {
    return whole ? _mm512_loadu_ps(x) : tn_first(x, n);
}

TN_INLINE __m512i tn_larger(__m512i most, __m512 x) {
    return _mm512_max_epu32(most, (__m512i)_mm512_abs_ps(x));
}

/* Register i of 16 rows of A or columns of B by 16 terms, of which n and kc exist. `along`: the terms
   of row or column i; otherwise term i of all. Prefetches the same terms of the next panel, or the
   rows of the next step. */
TN_INLINE __m512 tn_half(int i, int along, int whole, const float* x, ptrdiff_t n,
                         ptrdiff_t x_step, ptrdiff_t kc) {
    const float* at = x + i * x_step;
    tn_prefetch(at + TN_SIDE * x_step, 64);
    return along ? tn_terms(at, whole, i < n ? kc : 0) : tn_terms(at, whole, i < kc ? n : 0);
}

/* Pack 16 rows of A or columns of B by 32 terms into one tile for each of several parts. n rows or
   columns and kc terms exist (all if `whole`). `along`: the terms of a row or column are
   contiguous, and rows or columns are x_step apart; otherwise the other way round. Any two terms
   may make a pair if both sides agree. Here they are p and p + 16, so that two registers make a
   part lane by lane. Floats are transposed before they are split.
   Returns the largest magnitudes as bits, which are ordered as the numbers are; NaN is the largest. */
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

/* The same for one part: pairs of terms 2 p and 2 p + 1, rounded by the CPU, ties to even. */
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

/* Each of the 24 cases is a function of its own: GCC 12 takes four times as long to compile a single
   function for all. */
typedef __m512i (*tn_pack_fn)(float* y, const float* x, ptrdiff_t n, ptrdiff_t x_step,
                              ptrdiff_t kc);

#define TN_PACK(parts, is_a, along, whole)                                                         \
    TN_BF16 static __m512i tn_pack_##parts##is_a##along##whole(                                    \
        float* y, const float* x, ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {                   \
        if (parts > 1) return tn_split_tile(y, parts, is_a, along, whole, x, n, x_step, kc);       \
        tn_round_tile(y, is_a, along, whole, x, n, x_step, kc);                                    \
        return _mm512_setzero_si512();                                                             \
    }
#define TN_PACK_BOTH(parts, is_a, along)                                                           \
    TN_PACK(parts, is_a, along, 0) TN_PACK(parts, is_a, along, 1)
#define TN_PACK_ALL(parts)                                                                         \
    TN_PACK_BOTH(parts, 0, 0) TN_PACK_BOTH(parts, 0, 1)                                            \
    TN_PACK_BOTH(parts, 1, 0) TN_PACK_BOTH(parts, 1, 1)
TN_PACK_ALL(1)
TN_PACK_ALL(2)
TN_PACK_ALL(3)

#define TN_BOTH(parts, is_a, along)                                                                \
    {tn_pack_##parts##is_a##along##0, tn_pack_##parts##is_a##along##1}
#define TN_ALL(parts)                                                                               \
    {{TN_BOTH(parts, 0, 0), TN_BOTH(parts, 0, 1)},                                                  \
     {TN_BOTH(parts, 1, 0), TN_BOTH(parts, 1, 1)}}
static const tn_pack_fn tn_pack_fns[3][2][2][2] = {TN_ALL(1), TN_ALL(2), TN_ALL(3)};

/* For each step: two tiles for each part, and the largest magnitudes if there are several parts. */
TN_BF16 void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n,
                           ptrdiff_t stride, ptrdiff_t k_stride, ptrdiff_t kc) {
    const int along = k_stride == 1;
    const ptrdiff_t x_step = along ? stride : k_stride;
    const float* second = x + (along ? 16 * x_step : 16);
    const ptrdiff_t next = along ? TN_SIDE : TN_SIDE * x_step;
    for (; kc > 0; kc -= TN_SIDE, x += next, second += next, y += tn_step(parts)) {
        const tn_pack_fn pack = tn_pack_fns[parts - 1][is_a][along][n >= TN_SIDE && kc >= TN_SIDE];
        const __m512i most = _mm512_max_epu32(
            pack(y, x, n, x_step, kc), pack(y + TN_TILE, second, n - 16, x_step, kc));
        if (parts > 1) tn_store(y + 2 * TN_TILE * parts, (tn_vec)most);
    }
}

#else
void tn_pack_tiles(float* y, int parts, int is_a, const float* x, ptrdiff_t n, ptrdiff_t stride,
                   ptrdiff_t k_stride, ptrdiff_t kc) {}
#endif
