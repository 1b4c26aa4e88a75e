/* The forms of gemm_int8.h: the tiles, and packing, in registers of 16 numbers, of 8, or of 4. */
#include "gemm_int8.h"

#if TN_CODE_UNITS
#include <string.h>

typedef unsigned tn_uints __attribute__((vector_size(4 * TN_V)));

/* -- Registers ------------------------------------------------------------------------------- */

#if TN_V == 16
#include "bf16.h"

/* The larger magnitudes, as bits; NaN is the largest. */
TN_INLINE tn_ints tn_larger_of(tn_ints most, tn_vec x) {
    return (tn_ints)_mm512_max_epu32((__m512i)most, (__m512i)_mm512_abs_ps((__m512)x));
}

/* The first n numbers from x on; the others count as 0, and are not read. */
TN_INLINE tn_vec tn_terms_of(const float* x, ptrdiff_t n) { return (tn_vec)tn_first(x, n); }

TN_INLINE tn_ints tn_nearest(tn_vec x) { return (tn_ints)_mm512_cvtps_epi32((__m512)x); }

/* Codes of four registers as bytes, one register after another; 128 becomes 127. */
TN_INLINE tn_vec tn_bytes_of(const tn_ints x[4]) {
    __m512i all = _mm512_castsi128_si512(_mm512_cvtsepi32_epi8((__m512i)x[0]));
    all = _mm512_inserti32x4(all, _mm512_cvtsepi32_epi8((__m512i)x[1]), 1);
    all = _mm512_inserti32x4(all, _mm512_cvtsepi32_epi8((__m512i)x[2]), 2);
    return (tn_vec)_mm512_inserti32x4(all, _mm512_cvtsepi32_epi8((__m512i)x[3]), 3);
}

/* The sum of each quad's codes. */
TN_INLINE tn_ints tn_total_of(tn_vec quads) {
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), (__m512i)quads);
    return (tn_ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

/* sum + the products of two numbers of 16 bits in each lane. */
TN_INLINE tn_ints tn_dot_of_two(tn_ints sum, tn_vec x, tn_vec y) {
    return sum + (tn_ints)_mm512_madd_epi16((__m512i)x, (__m512i)y);
}

/* Numbers of 16 bits from the even and the odd bytes. */
TN_INLINE tn_vec tn_odd(tn_vec x) { return (tn_vec)_mm512_srai_epi16((__m512i)x, 8); }
TN_INLINE tn_vec tn_even(tn_vec x) { return tn_odd((tn_vec)_mm512_slli_epi16((__m512i)x, 8)); }

#elif TN_V == 8
TN_INLINE tn_ints tn_larger_of(tn_ints most, tn_vec x) {
    const __m256i size = _mm256_set1_epi32(0x7FFFFFFF);
    return (tn_ints)_mm256_max_epu32((__m256i)most, _mm256_and_si256((__m256i)x, size));
}

TN_INLINE tn_vec tn_terms_of(const float* x, ptrdiff_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    if (n >= 8) return tn_load(x);
    return (tn_vec)_mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}

TN_INLINE tn_ints tn_nearest(tn_vec x) { return (tn_ints)_mm256_cvtps_epi32((__m256)x); }

/* Packing takes 4 of each half in turn; the permutation puts them back in order. */
TN_INLINE tn_vec tn_bytes_of(const tn_ints x[4]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i halves = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]);
    const __m256i others = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
    return (tn_vec)_mm256_permutevar8x32_epi32(_mm256_packs_epi16(halves, others), order);
}

TN_INLINE tn_ints tn_total_of(tn_vec quads) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), (__m256i)quads);
    return (tn_ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* The asm ties the sum to one register. Else GCC 12 adds into another one, and runs out of them. */
TN_INLINE tn_ints tn_dot_of_two(tn_ints sum, tn_vec x, tn_vec y) {
    sum += (tn_ints)_mm256_madd_epi16((__m256i)x, (__m256i)y);
    __asm__("" : "+x"(sum));
    return sum;
}

TN_INLINE tn_vec tn_odd(tn_vec x) { return (tn_vec)_mm256_srai_epi16((__m256i)x, 8); }
TN_INLINE tn_vec tn_even(tn_vec x) { return tn_odd((tn_vec)_mm256_slli_epi16((__m256i)x, 8)); }

#else
TN_INLINE tn_ints tn_larger_of(tn_ints most, tn_vec x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vabsq_f32((float32x4_t)x));
    return (tn_ints)vmaxq_u32((uint32x4_t)most, bits);
}

TN_INLINE tn_vec tn_terms_of(const float* x, ptrdiff_t n) {
    tn_vec four = {0};
    if (n >= 4) return tn_load(x);
    for (int i = 0; i < n; i++) four[i] = x[i];
    return four;
}

TN_INLINE tn_ints tn_nearest(tn_vec x) { return (tn_ints)vcvtnq_s32_f32((float32x4_t)x); }

TN_INLINE tn_vec tn_bytes_of(const tn_ints x[4]) {
    int16x4_t half[4];
    TN_UNROLL for (int i = 0; i < 4; i++) half[i] = vqmovn_s32((int32x4_t)x[i]);
    return (tn_vec)vcombine_s8(vqmovn_s16(vcombine_s16(half[0], half[1])),
                               vqmovn_s16(vcombine_s16(half[2], half[3])));
}

TN_INLINE tn_ints tn_total_of(tn_vec quads) {
    return (tn_ints)vpaddlq_s16(vpaddlq_s8((int8x16_t)quads));
}

#endif

/* -- The tile -------------------------------------------------------------------------------- */

/* The tile for each unit: a step has TN_WORDS words of each row and column. TN_DOT adds to sums the
   products of words of B and a word of A. */
#if TN_INT8 == 2
#define TN_UNIT(name) name##_sdot
#define TN_ASKED __attribute__((target("arch=armv8.2-a+dotprod")))
#define TN_WORDS 2
#define TN_DOT(sum, r, q) (tn_ints)vdotq_s32((int32x4_t)sum, (int8x16_t)r, (int8x16_t)q)
#include "gemm_int8_tile.h"

/* smmla multiplies 2 rows of 8 terms by 2 columns: sum[i][j] has rows 2 i, 2 i + 1 by columns 2 j,
   2 j + 1. */
#define TN_SMMLA_ASKED __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

TN_INLINE TN_SMMLA_ASKED void tn_smmla_body(int h, ptrdiff_t steps, const float* a, const float* b,
                                            float* c, ptrdiff_t ldc, int add) {
    int32x4_t sum[TN_MR / 2][4];
    TN_UNROLL for (int i = 0; i < h; i += 2)
        TN_UNROLL for (int j = 0; j < 4; j++) sum[i / 2][j] = vdupq_n_s32(0);
    tn_expect(h, 2, c, ldc);
    const float* q = a + 2 * TN_MR;
    const float* r = b + TN_NR;
    for (ptrdiff_t s = 0; s < steps; s++) {
        int8x16_t columns[4];
        TN_UNROLL for (int j = 0; j < 4; j++)
            columns[j] = (int8x16_t)tn_load(r + s * 2 * TN_NR + 4 * j);
        TN_UNROLL for (int i = 0; i < h; i += 2) {
            TN_IN_ORDER;
            const int8x16_t rows = (int8x16_t)tn_load(q + s * 2 * TN_MR + 2 * i);
            TN_UNROLL for (int j = 0; j < 4; j++)
                sum[i / 2][j] = vmmlaq_s32(sum[i / 2][j], rows, columns[j]);
        }
    }
    tn_ints rows[TN_MR][2];
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < 2; v++) {
            const int32x4_t x = sum[i / 2][2 * v], y = sum[i / 2][2 * v + 1];
            rows[i][v] = (tn_ints)(i % 2 ? vcombine_s32(vget_high_s32(x), vget_high_s32(y))
                                         : vcombine_s32(vget_low_s32(x), vget_low_s32(y)));
        }
    }
    tn_finish_codes(h, rows, a, b, c, ldc, add);
}

TN_SMMLA_ASKED static void tn_multiply_smmla(int h, ptrdiff_t steps, const float* a, const float* b,
                                             float* c, ptrdiff_t ldc, int add) {
    TN_ALL_HEIGHTS(tn_smmla_body, steps, a, b, c, ldc, add)
}

#else
#define TN_UNIT(name) name##_madd
#define TN_ASKED
#define TN_WORDS 2
#define TN_DOT(sum, r, q) tn_dot_of_two(sum, r, q)
#include "gemm_int8_tile.h"

#if TN_UNITS
#if TN_V == 16
#define TN_ASKED __attribute__((target("avx512vnni")))
#define TN_DOT(sum, r, q) (tn_ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)r, (__m512i)q)
#else
#define TN_ASKED __attribute__((target("avxvnni")))
#define TN_DOT(sum, r, q) (tn_ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)r, (__m256i)q)
#endif
#define TN_WORDS 1
#define TN_UNIT(name) name##_vnni
#include "gemm_int8_tile.h"
#endif
#endif

/* -- Packing --------------------------------------------------------------------------------- */

/* Scales s of n blocks whose largest magnitudes have these bits, and 1 / s. If a block counts as
   zeros, both are 0. If a block has NaN or infinity, s is NaN and 1 / s is 0. */
static inline void tn_scales_of(float* scales, float* up, tn_ints bits, int n) {
    const float least = 1e-30f, finite = 3e38f;
    float most[TN_V];
    memcpy(most, &bits, sizeof most);
    for (int i = 0; i < TN_V; i++) {
        const int none = !(most[i] > least && most[i] < finite);
        const float scale = most[i] <= least ? 0 : none ? __builtin_nanf("") : most[i] / 127;
        if (i < n) scales[i] = scale;
        up[i] = none ? 0 : 127 / most[i];
    }
}

/* Terms of a step. */
static inline int tn_terms(int unit) { return TN_INT8 == 2 ? 8 : unit == 2 ? 64 : 4; }

/* Whether the unit is TDPBSSD, or smmla. */
static inline int tn_is_tiles(int unit) { return TN_INT8 == 1 && unit == 2; }
static inline int tn_is_smmla(int unit) { return TN_INT8 == 2 && unit == 2; }

/* Rows of a panel of A, or columns of B. */
static inline int tn_width_of(int unit, int is_a) {
    return !is_a ? TN_NR : tn_is_tiles(unit) ? TN_SIDE : TN_MR;
}

/* Floats from a row or column of a step to the next. */
static inline int tn_apart(int unit, int is_a) {
    return tn_is_tiles(unit) && is_a ? 16 : tn_is_smmla(unit) ? 2 : 1;
}

/* Store quads p of TN_V rows or columns, as the unit reads them. */
TN_INLINE void tn_keep_quads(int unit, int is_a, float* y, ptrdiff_t p, tn_vec quads) {
    const int width = tn_width_of(unit, is_a);
    const int shifted = TN_INT8 == 1 && unit == 1 && !is_a;
    const tn_ints up = (shifted ? (int)0x80808080u : 0) - (tn_ints){0};
    if (tn_is_smmla(unit)) {
        float* at = y + p / 2 * 2 * width + p % 2;
        for (int i = 0; i < TN_V; i++) at[2 * i] = quads[i];
    } else if (unit) {
        tn_store(y + p * width, (tn_vec)((tn_ints)quads ^ up));
    } else {
#if TN_INT8 == 1
        tn_store(y + 2 * p * width, tn_even(quads));
        tn_store(y + (2 * p + 1) * width, tn_odd(quads));
#endif
    }
}

/* u - 1/2 for the terms of a row from k on: between -1/2 and 1/2, so that a 0 stays 0. */
TN_INLINE tn_vec tn_chances(ptrdiff_t row, ptrdiff_t k) {
    tn_uints h;
    TN_UNROLL for (int i = 0; i < TN_V; i++) h[i] = (unsigned)i * 0x85EBCA6Bu;
    h += (unsigned)row * 0x9E3779B1u + (unsigned)k * 0x85EBCA6Bu;
    h = (h ^ h >> 16) * 0x7FEB352Du;
    h = (h ^ h >> 15) * 0x846CA68Bu;
    h = (h ^ h >> 16) >> 16;
    return __builtin_convertvector((tn_ints)h, tn_vec) * (1.0f / 65536) + (0.5f / 65536 - 0.5f);
}

/* Up to TN_V rows of A or columns of B, x_row apart, each with contiguous terms. If n are fewer
   than TN_V, the last one is repeated; codes of the repetitions are not used. Returns the sum of each
   row's codes. */
TN_INLINE tn_ints tn_quads_along(int unit, float* scales, float* y, int is_a, const float* x,
                                 ptrdiff_t n, ptrdiff_t x_row, ptrdiff_t kc, int by_chance,
                                 ptrdiff_t first, ptrdiff_t k0) {
    const float* row[TN_V];
    tn_ints total = {0}, most;
    float up[TN_V];
    const ptrdiff_t terms = tn_terms(unit), end = (kc + terms - 1) / terms * terms;
    for (int j = 0; j < TN_V; j++) {
        tn_ints bits = {0};
        int largest = 0;
        row[j] = x + (j < n ? j : n - 1) * x_row;
        for (ptrdiff_t k = 0; k < kc; k += TN_V)
            bits = tn_larger_of(bits, tn_terms_of(row[j] + k, kc - k));
        for (int i = 0; i < TN_V; i++) largest = bits[i] > largest ? bits[i] : largest;
        most[j] = largest;
    }
    tn_scales_of(scales, up, most, tn_width_of(unit, is_a) < TN_V ? TN_MR : TN_V);
    for (ptrdiff_t k = 0; k < kc; k += 4 * TN_V) {
        tn_vec r[TN_V];
        TN_UNROLL for (int j = 0; j < TN_V; j++) {
            tn_ints codes[4];
            TN_UNROLL for (int i = 0; i < 4; i++) {
                const ptrdiff_t at = k + i * TN_V;
                const tn_vec x_j = tn_terms_of(row[j] + at, kc - at), to = tn_same(up[j]);
                codes[i] = tn_nearest(
                    by_chance ? tn_fused(x_j, to, tn_chances(first + j, k0 + at)) : x_j * to);
            }
            r[j] = tn_bytes_of(codes);
            if (tn_is_tiles(unit) && is_a) tn_store(y + k / 4 * TN_SIDE + j * TN_V, r[j]);
        }
        if (tn_is_tiles(unit) && is_a) continue;
        tn_exchange(r);
        for (int p = 0; p < TN_V && k + 4 * p < end; p++) {
            tn_keep_quads(unit, is_a, y, k / 4 + p, r[p]);
            total += tn_total_of(r[p]);
        }
    }
    return total;
}

/* TN_V contiguous columns of B, of which n exist; their terms are x_k apart. */
TN_INLINE void tn_quads_across(int unit, float* scales, float* y, const float* x, ptrdiff_t n,
                               ptrdiff_t x_k, ptrdiff_t kc) {
    tn_ints bits = {0};
    float ups[TN_V];
    for (ptrdiff_t k = 0; k < kc; k++) bits = tn_larger_of(bits, tn_terms_of(x + k * x_k, n));
    tn_scales_of(scales, ups, bits, TN_V);
    const tn_vec up = tn_load(ups);
    const ptrdiff_t terms = tn_terms(unit), end = (kc + terms - 1) / terms * terms;
    for (ptrdiff_t k = 0; k < end; k += 4) {
        tn_ints quads = {0};
        TN_UNROLL for (int i = 0; i < 4; i++) {
            const tn_vec term = tn_terms_of(x + (k + i) * x_k, k + i < kc ? n : 0);
            quads |= (tn_nearest(term * up) & 0xFF) << 8 * i;
        }
        tn_keep_quads(unit, 0, y, k / 4, (tn_vec)quads);
    }
}

static void tn_pack_codes_a(int unit, float* y, tn_piece p, int by_chance) {
    const int width = tn_width_of(unit, 1);
    for (int i = 0; i < width && i < p.n; i += TN_V) {
        float* quads = y + 2 * width + i * tn_apart(unit, 1);
        const float* rows = p.x + i * p.stride;
        const tn_ints total = by_chance
            ? tn_quads_along(unit, y + i, quads, 1, rows, p.n - i, p.stride, p.kc, 1, p.row + i, p.k)
            : tn_quads_along(unit, y + i, quads, 1, rows, p.n - i, p.stride, p.kc, 0, 0, 0);
        for (int j = 0; j < TN_V && i + j < width; j++) {
            const int begin = TN_INT8 == 1 && unit == 1 ? -128 * total[j] : 0;
            memcpy(y + width + i + j, &begin, sizeof begin);
        }
    }
}

static void tn_pack_codes_b(int unit, float* y, tn_piece p) {
    for (int i = 0; i < TN_NR && i < p.n; i += TN_V) {
        float *scales = y + i, *quads = y + TN_NR + i * tn_apart(unit, 0);
        if (p.k_stride == 1)
            tn_quads_along(unit, scales, quads, 0, p.x + i * p.stride, p.n - i, p.stride, p.kc, 0,
                           0, 0);
        else tn_quads_across(unit, scales, quads, p.x + i, p.n - i, p.k_stride, p.kc);
    }
}

#define TN_PACK(unit)                                                                              \
    void tn_pack_codes_##unit##_a(float* y, const tn_piece* p) { tn_pack_codes_a(unit, y, *p, 0); } \
    void tn_pack_codes_##unit##_a_by_chance(float* y, const tn_piece* p) {                         \
        tn_pack_codes_a(unit, y, *p, 1);                                                           \
    }                                                                                              \
    void tn_pack_codes_##unit##_b(float* y, const tn_piece* p) { tn_pack_codes_b(unit, y, *p); }
TN_PACK(0)
TN_PACK(1)
TN_PACK(2)

/* -- The forms ------------------------------------------------------------------------------- */

#define TN_FORM(unit, words, pack_a, tile) {                                                       \
    .number = 5 + unit, .terms = TN_INT8 == 2 ? 8 : 4, .pass_terms = TN_KC, .group = TN_GROUP,     \
    .a = {.width = TN_MR, .step = words * TN_MR, .head = 2 * TN_MR, .even = 1, .spare = TN_V,      \
          .pack = pack_a},                                                                         \
    .b = {.width = TN_NR, .step = words * TN_NR, .head = TN_NR, .pack = tn_pack_codes_##unit##_b}, \
    .multiply = tile}
#define TN_FORMS(unit, words, tile) [unit] = {                                                     \
    TN_FORM(unit, words, tn_pack_codes_##unit##_a, tile),                                          \
    TN_FORM(unit, words, tn_pack_codes_##unit##_a_by_chance, tile)}

const tn_form tn_form_codes[3][2] = {
#if TN_INT8 == 2
    TN_FORMS(1, 2, tn_multiply_sdot),
    TN_FORMS(2, 2, tn_multiply_smmla),
#else
    TN_FORMS(0, 2, tn_multiply_madd),
#if TN_UNITS
    TN_FORMS(1, 1, tn_multiply_vnni),
#endif
#endif
};
#endif
