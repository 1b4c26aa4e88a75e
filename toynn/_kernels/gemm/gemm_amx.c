/* The forms for the tiles of AMX: parts of bfloat16 of each float, and codes of 8 bits.

   One instruction, TDPBF16PS, takes 16 rows of 32 terms of A and 32 terms of 16 columns of B, all
   bfloat16. It adds their products to 16 x 16 float32 sums (tiles_software.h says it in C). For
   floats there is no such instruction. But a float has 24 significant bits and a bfloat16 has 8, with
   the same exponents. So three bfloat16 make one float:

       x = hi + mid + lo       hi = bf16(x)    mid = bf16(x - hi)    lo = bf16(x - hi - mid)

   Rounding is to nearest. For several parts ties go away from 0, which costs less; a single part is
   rounded as the CPU does, ties to even. Nothing is lost: both differences are exact. mid is up to
   2^-8 of x, lo up to 2^-16, and

       x y = hi hi' + (hi mid' + mid hi') + (hi lo' + mid mid' + lo hi') + up to 2^-23 x y

   Six products of bfloat16, added up in float32, are as exact as one product of floats, and tiles
   compute them faster. With two parts, hi and bf16(x - hi), three products omit up to 2^-14 x y. With
   hi alone, one product omits up to 2^-7 x y. Source: Henry, Tang & Heinecke 2019, arXiv:1904.06376.

   This holds if no part and no product of parts underflows or overflows: see tn_splits_exactly.

   A packed panel is a sequence of steps. A step has 32 terms of 32 rows of A, or of 32 columns of B.
   It holds two tiles for each part, of 16 rows or columns each. If there are several parts, 16 numbers
   follow whose largest is the largest magnitude of the step. Missing rows, columns and terms are 0. */
#include "gemm_int8.h"

#ifdef TN_SOFTWARE_TILES
_Thread_local tn_tile_shapes tn_shapes;
_Thread_local uint32_t tn_tiles[8][16][16];
#endif

#if TN_TILES
#include "bf16.h"

#include <string.h>

#define TN_TILE 256 /* floats, or pairs, of a tile */
#define TN_STEP(parts) (2 * TN_TILE * (parts) + ((parts) > 1 ? 16 : 0)) /* floats of a step */

/* -- Packing --------------------------------------------------------------------------------- */

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

/* Pack whole steps of a panel: two tiles for each part, and the largest magnitudes if there are several
   parts. Each case is a function of its own: GCC 12 takes four times as long to compile a single
   function for all. */
typedef __m512i (*tn_pack_fn)(float* y, const float* x, ptrdiff_t n, ptrdiff_t x_step,
                              ptrdiff_t kc);

TN_BF16 static void tn_pack_steps(float* y, int parts, const tn_pack_fn cases[2][2], tn_piece p) {
    const int along = p.k_stride == 1;
    const ptrdiff_t x_step = along ? p.stride : p.k_stride;
    const float* second = p.x + (along ? 16 * x_step : 16);
    const ptrdiff_t next = along ? TN_SIDE : TN_SIDE * x_step;
    for (; p.kc > 0; p.kc -= TN_SIDE, p.x += next, second += next, y += TN_STEP(parts)) {
        const tn_pack_fn pack = cases[along][p.n >= TN_SIDE && p.kc >= TN_SIDE];
        const __m512i most = _mm512_max_epu32(
            pack(y, p.x, p.n, x_step, p.kc), pack(y + TN_TILE, second, p.n - 16, x_step, p.kc));
        if (parts > 1) tn_store(y + 2 * TN_TILE * parts, (tn_vec)most);
    }
}

#define TN_PACK(parts, is_a, along, whole)                                                         \
    TN_BF16 static __m512i tn_pack_##parts##is_a##along##whole(                                    \
        float* y, const float* x, ptrdiff_t n, ptrdiff_t x_step, ptrdiff_t kc) {                   \
        if (parts > 1) return tn_split_tile(y, parts, is_a, along, whole, x, n, x_step, kc);       \
        tn_round_tile(y, is_a, along, whole, x, n, x_step, kc);                                    \
        return _mm512_setzero_si512();                                                             \
    }
#define TN_PACK_SIDE(parts, is_a)                                                                  \
    TN_PACK(parts, is_a, 0, 0) TN_PACK(parts, is_a, 0, 1)                                          \
    TN_PACK(parts, is_a, 1, 0) TN_PACK(parts, is_a, 1, 1)                                          \
    static void tn_pack_##parts##is_a(float* y, const tn_piece* p) {                               \
        static const tn_pack_fn cases[2][2] = {                                                    \
            {tn_pack_##parts##is_a##00, tn_pack_##parts##is_a##01},                                \
            {tn_pack_##parts##is_a##10, tn_pack_##parts##is_a##11}};                               \
        tn_pack_steps(y, parts, cases, *p);                                                        \
    }
TN_PACK_SIDE(1, 0) TN_PACK_SIDE(1, 1)
TN_PACK_SIDE(2, 0) TN_PACK_SIDE(2, 1)
TN_PACK_SIDE(3, 0) TN_PACK_SIDE(3, 1)

/* -- The tiles ------------------------------------------------------------------------------- */

/* Eight tiles of 16 rows. Tiles 0 to 3 hold 32 x 32 sums; 4 and 5, one part of A; 6 and 7, one of B.

                      B   6 | 7
              A   4     0 | 1
                  5     2 | 3

   A packed step holds the parts of its floats in this order, two tiles for each part. */
enum { TN_HI, TN_MID, TN_LO };
#define TN_LOAD_A(part) tn_tile_load(4, a + 2 * TN_TILE * (part), 64); \
                        tn_tile_load(5, a + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_LOAD_B(part) tn_tile_load(6, b + 2 * TN_TILE * (part), 64); \
                        tn_tile_load(7, b + 2 * TN_TILE * (part) + TN_TILE, 64);
#define TN_MULTIPLY tn_tile_multiply(0, 4, 6); tn_tile_multiply(1, 4, 7); \
                    tn_tile_multiply(2, 5, 6); tn_tile_multiply(3, 5, 7);

/* How both kernels begin and end: the asm tells GCC 12 that loads of tiles read memory. */
#define TN_BEGIN tn_expect(h, 2, c, ldc); \
                 __asm__ volatile("" ::: "memory"); \
                 tn_tile_zero(0); tn_tile_zero(1); tn_tile_zero(2); tn_tile_zero(3);
#define TN_STORE(to, row) tn_tile_store(0, to, (row) * 4); tn_tile_store(1, to + 16, (row) * 4); \
                          tn_tile_store(2, to + 16 * (row), (row) * 4); \
                          tn_tile_store(3, to + 16 * (row) + 16, (row) * 4);

/* Small products come first. Each product shares a part with the one before, so that few tiles are
   loaded twice. Sums begin at 0 and are added to C at the end. If they began with C, sums of 50257
   terms would be six times less exact. */
TN_INLINE void tn_multiply_parts(int parts, int h, ptrdiff_t steps, const float* a, const float* b,
                                 float* c, ptrdiff_t ldc, int add) {
    TN_BEGIN
    for (; steps > 0; steps--, a += TN_STEP(parts), b += TN_STEP(parts)) {
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
    if (!add && h == TN_SIDE) {
        TN_STORE(c, ldc)
    } else {
        tn_vec sums[TN_SIDE][2];
        float* to = (float*)sums;
        TN_STORE(to, TN_SIDE)
        tn_finish(h, 2, sums, c, ldc, add);
    }
}

/* TDPBSSD takes 16 rows of 64 terms of A and 64 terms of 16 columns of B. It multiplies signed bytes
   and adds four products to each of 16 x 16 int32. */
static void tn_multiply_codes(int h, ptrdiff_t steps, const float* a, const float* b, float* c,
                              ptrdiff_t ldc, int add) {
    tn_ints sums[TN_SIDE][2];
    int* to = (int*)sums;
    const float *q = a + 2 * TN_SIDE, *r = b + TN_SIDE;
    TN_BEGIN
    for (; steps > 0; steps--, q += 2 * TN_TILE, r += 2 * TN_TILE) {
        tn_tile_load(4, q, 64);
        tn_tile_load(5, q + TN_TILE, 64);
        tn_tile_load(6, r, 4 * TN_SIDE); /* columns 0 to 15, then 16 to 31 */
        tn_tile_load(7, r + 16, 4 * TN_SIDE);
        tn_tile_multiply_codes(0, 4, 6); tn_tile_multiply_codes(1, 4, 7);
        tn_tile_multiply_codes(2, 5, 6); tn_tile_multiply_codes(3, 5, 7);
    }
    TN_STORE(to, TN_SIDE)
    tn_finish_codes(h, sums, a, b, c, ldc, add);
}

/* The largest magnitude in a packed panel of several parts; NaN if there is one. */
static inline float tn_largest(int parts, ptrdiff_t steps, const float* panel) {
    __m512i largest = _mm512_setzero_si512();
    for (ptrdiff_t s = 1; s <= steps; s++)
        largest = _mm512_max_epu32(largest, (__m512i)tn_load(panel + s * TN_STEP(parts) - 16));
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Parts and products of parts lose only what is below 2^-126. With these bounds that is 2^-60 of the
   largest number and 2^-46 of the largest product. And 2^26 products may be added up. Small numbers
   beside large ones do no harm, so only the largest is checked. */
static inline int tn_splits_exactly(int parts, ptrdiff_t steps, const float* a, const float* b) {
    const float x = tn_largest(parts, steps, a), y = tn_largest(parts, steps, b);
    if (x == 0 || y == 0) return x <= 0x1p126f && y <= 0x1p126f;
    return x >= 0x1p-66f && x <= 0x1p126f && y >= 0x1p-66f && y <= 0x1p126f
        && x * y >= 0x1p-80f && x * y <= 0x1p100f;
}

/* -- The forms ------------------------------------------------------------------------------- */

#define TN_PARTS(parts)                                                                            \
    static void tn_multiply_##parts(int h, ptrdiff_t steps, const float* a, const float* b,        \
                                    float* c, ptrdiff_t ldc, int add) {                            \
        tn_multiply_parts(parts, h, steps, a, b, c, ldc, add);                                     \
    }                                                                                              \
    static int tn_fits_##parts(ptrdiff_t steps, const float* a, const float* b) {                  \
        return parts == 1 || tn_splits_exactly(parts, steps, a, b);                                \
    }
TN_PARTS(1)
TN_PARTS(2)
TN_PARTS(3)

#define TN_OF_TILES .group = TN_GROUP_TILES, .by_rows = 1, .begin = tn_tiles_begin, .end = tn_tiles_end
#define TN_OF_PARTS(parts) {                                                                       \
    .number = 1 + parts, .terms = TN_SIDE, .pass_terms = 3 * TN_KC / parts, TN_OF_TILES,           \
    .a = {.width = TN_SIDE, .step = TN_STEP(parts), .pack = tn_pack_##parts##1},                   \
    .b = {.width = TN_SIDE, .step = TN_STEP(parts), .pack = tn_pack_##parts##0},                   \
    .multiply = tn_multiply_##parts, .fits = tn_fits_##parts}
const tn_form tn_form_parts[3] = {TN_OF_PARTS(1), TN_OF_PARTS(2), TN_OF_PARTS(3)};

#define TN_OF_CODES(pack_a) {                                                                      \
    .number = 7, .terms = 64, .pass_terms = TN_KC, TN_OF_TILES,                                    \
    .a = {.width = TN_SIDE, .step = 16 * TN_SIDE, .head = 2 * TN_SIDE, .pack = pack_a},            \
    .b = {.width = TN_NR, .step = 16 * TN_NR, .head = TN_NR, .pack = tn_pack_codes_2_b},           \
    .multiply = tn_multiply_codes}
const tn_form tn_form_codes_amx[2] = {TN_OF_CODES(tn_pack_codes_2_a),
                                 TN_OF_CODES(tn_pack_codes_2_a_by_chance)};
#endif
