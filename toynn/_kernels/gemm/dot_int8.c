/* The dot products of dot_int8.h, and the rounding of x, with AVX2 and vpdpbusd. */
#include "dot_int8.h"

enum {
    TN_ROWS = 4,     /* most rows of x that are taken at a time */
    TN_AHEAD = 4096  /* bytes ahead that w is prefetched: CPUs themselves stop at a page's end */
};

/* What the functions below compute, in plain C: what 256 terms, or their first `runs` blocks of 32,
   add to one element of y.

       w    codes c with factors d and m; Q6_K has a factor a, too, which is 1 for other types
       x    codes q with scales s; `sum` has s times the sum of each block's codes

   Lane i of eight begins with - m sum of block i, then adds the products of terms 4 i .. 4 i + 3 of
   every block. These lanes are added to the lanes of earlier terms. At the end tn_sum8 adds them up. */
static inline void tn_dot_256(float lane[8], int runs, const int* c, const int* a, const float* d,
                              const float* m, const int8_t* q, const float* s, const float* sum) {
    float part[8];
    for (int i = 0; i < 8; i++) part[i] = -m[i] * sum[i];
    for (int j = 0; j < runs; j++)
        for (int i = 0; i < 8; i++) {
            int products = 0; /* an integer, of at most 18 bits before it is multiplied by a */
            for (int k = 32 * j + 4 * i; k < 32 * j + 4 * i + 4; k++) products += c[k] * q[k];
            part[i] += (float)(a[2 * j + i / 4] * products) * (d[j] * s[j]); /* fused */
        }
    for (int i = 0; i < 8; i++) lane[i] += part[i];
}

#if TN_INT8 == 1
#include <immintrin.h>
#include <string.h>

/* -- Rows of x, rounded ---------------------------------------------------------------------- */

static inline int tn_most(__m256i x) {
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epu32(most, _mm_shuffle_epi32(most, 0xB1)));
}

static inline int tn_total(__m256i x) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

static void tn_round_row(float* row, const float* x, ptrdiff_t n) {
    /* A block whose largest magnitude is up to `least` becomes zeros, long before 127 / most would
       overflow (below 127 / 3.4e38). From `finite` on, a block counts as infinite or NaN. */
    const float least = 1e-30f, finite = 3e38f;
    int8_t* q = (int8_t*)row;
    float* scale = row + n / 4;
    float* sum = scale + tn_scales(n);
    int* less = (int*)sum + tn_scales(n);
    const __m256i size = _mm256_set1_epi32(0x7FFFFFFF);
    memset(scale, 0, 2 * tn_scales(n) * sizeof *scale);
    for (ptrdiff_t b = 0; b < n / TN_RUN; b++, x += TN_RUN, q += TN_RUN) {
        __m256i all[4], bits = _mm256_setzero_si256(), total = bits;
        TN_UNROLL for (int i = 0; i < 4; i++) {
            const __m256i one = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * i));
            bits = _mm256_max_epu32(bits, _mm256_and_si256(one, size)); /* NaN is the largest */
        }
        const int most_bits = tn_most(bits);
        float most;
        memcpy(&most, &most_bits, sizeof most);
        const int none = !(most > least && most < finite);
        const __m256 up = _mm256_set1_ps(none ? 0 : 127 / most);
        TN_UNROLL for (int i = 0; i < 4; i++) {
            all[i] = _mm256_cvtps_epi32(_mm256_loadu_ps(x + 8 * i) * up);
            total = _mm256_add_epi32(total, all[i]);
        }
        /* Packing takes 4 of each half in turn; the permutation puts them back in order. */
        const __m256i halves = _mm256_packs_epi32(all[0], all[1]);
        const __m256i bytes = _mm256_packs_epi16(halves, _mm256_packs_epi32(all[2], all[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i*)q, _mm256_permutevar8x32_epi32(bytes, order));
        scale[b] = most <= least ? 0 : none ? __builtin_nanf("") : most / 127;
        less[b] = -tn_total(total);
        sum[b] = scale[b] * -(float)less[b];
    }
}

void tn_round_to_int8(float* rounded, ptrdiff_t x_row, const float* x, ptrdiff_t M, ptrdiff_t n,
                      int unit) {
    (void)unit; /* all units read the same layout */
    for (ptrdiff_t m = 0; m < M; m++) tn_round_row(rounded + m * x_row, x + m * n, n);
}

/* -- What the types have in common ----------------------------------------------------------- */

TN_INLINE __m256i tn_bytes(const void* at) { return _mm256_loadu_si256((const __m256i*)at); }

/* The float16 at the start of each of `blocks` blocks, as floats. */
TN_INLINE __m256 tn_factors(const uint8_t* w, ptrdiff_t nbytes, int blocks) {
    uint16_t d[TN_RUNS] = {0};
    TN_UNROLL for (int i = 0; i < TN_RUNS; i++) {
        if (i < blocks) memcpy(d + i, w + i * nbytes, sizeof *d);
    }
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)d));
}

/* One float16 in all lanes. */
TN_INLINE __m256 tn_factor(const void* at) {
    uint16_t d;
    memcpy(&d, at, sizeof d);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)d));
}

TN_INLINE __m256 tn_8_bytes(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)x)));
}

TN_INLINE float tn_sum8(__m256 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* For each type: d and m of 256 terms, one lane per block of x; and codes 32 j .. 32 j + 31. */

/* -- Q4_0: w = d c - 8 d --------------------------------------------------------------------- */

TN_INLINE __m256 tn_d_q4_0(const uint8_t* w, int runs, __m256* m) {
    const __m256 d = tn_factors(w, sizeof(tn_q4_0), runs);
    *m = d * _mm256_set1_ps(8);
    return d;
}

TN_INLINE __m256i tn_codes_q4_0(const uint8_t* w, int j) {
    const tn_q4_0* block = (const tn_q4_0*)w + j;
    const __m128i bytes = _mm_loadu_si128((const __m128i*)block->low);
    const __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* -- Q8_0: w = d c, c signed ----------------------------------------------------------------- */

TN_INLINE __m256 tn_d_q8_0(const uint8_t* w, int runs, __m256* m) {
    *m = _mm256_setzero_ps();
    return tn_factors(w, sizeof(tn_q8_0), runs);
}

TN_INLINE __m256i tn_codes_q8_0(const uint8_t* w, int j) {
    return tn_bytes(((const tn_q8_0*)w)[j].codes);
}

/* -- Q4_K: w = d a c - m b ------------------------------------------------------------------- */

/* scales, of 6 bits: the lower bits of bytes 0 to 3 are a[0..3], of bytes 4 to 7 b[0..3]. The upper 2
   bits of these bytes belong to a[4..7] and b[4..7], whose lower 4 bits are in bytes 8 to 11. */
TN_INLINE __m256 tn_d_q4_k(const uint8_t* w, __m256* m) {
    const tn_q4_k* block = (const tn_q4_k*)w;
    uint32_t s[3];
    memcpy(s, block->scales, sizeof s);
    const uint64_t halves = 0x0F0F0F0F, pairs = 0x30303030, six = halves | pairs;
    const uint64_t a = (s[0] & six) | ((s[2] & halves) | (s[0] >> 2 & pairs)) << 32;
    const uint64_t b = (s[1] & six) | ((s[2] >> 4 & halves) | (s[1] >> 2 & pairs)) << 32;
    *m = tn_8_bytes(b) * tn_factor(block->m);
    return tn_8_bytes(a) * tn_factor(block->d);
}

TN_INLINE __m256i tn_codes_q4_k(const uint8_t* w, int j) {
    const __m256i bytes = tn_bytes(((const tn_q4_k*)w)->low + 32 * (j / 2));
    return _mm256_and_si256(j & 1 ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}

/* -- Q6_K: w = d a (c - 32), a for 16 codes -------------------------------------------------- */

TN_INLINE __m256 tn_d_q6_k(const uint8_t* w, __m256* m) {
    *m = _mm256_setzero_ps(); /* 32 is subtracted from the codes: a is an integer factor, too */
    return tn_factor(((const tn_q6_k*)w)->d);
}

/* Bits 4 and 5 of c are two bits of high, from bit 2 (j % 4) on. */
TN_INLINE __m256i tn_codes_q6_k(const uint8_t* w, int j) {
    const tn_q6_k* block = (const tn_q6_k*)w;
    const __m256i bytes = tn_bytes(block->low + 64 * (j / 4) + 32 * (j % 2));
    const __m256i bits = tn_bytes(block->high + 32 * (j / 4));
    const __m256i low = j % 4 < 2 ? bytes : _mm256_srli_epi16(bytes, 4);
    const __m256i upper = j % 4 == 0 ? _mm256_slli_epi16(bits, 4)
        : j % 4 == 1 ? _mm256_slli_epi16(bits, 2)
        : j % 4 == 2 ? bits : _mm256_srli_epi16(bits, 2);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                           _mm256_and_si256(upper, _mm256_set1_epi8(48)));
}

/* The 16 a as shorts: first those of the first halves of blocks, then those of the second halves. */
TN_INLINE __m256i tn_a(const uint8_t* w) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i a = _mm_loadu_si128((const __m128i*)((const tn_q6_k*)w)->a);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(a, order));
}

/* -- The four types: the compiler knows which one it is ---------------------------------------- */

TN_INLINE __m256 tn_d_and_m(int type, const uint8_t* w, int runs, __m256* m) {
    switch (type) {
    case TN_Q4_0: return tn_d_q4_0(w, runs, m);
    case TN_Q8_0: return tn_d_q8_0(w, runs, m);
    case TN_Q4_K: return tn_d_q4_k(w, m);
    case TN_Q6_K: return tn_d_q6_k(w, m);
    }
    __builtin_unreachable();
}

TN_INLINE __m256i tn_codes(int type, const uint8_t* w, int j) {
    switch (type) {
    case TN_Q4_0: return tn_codes_q4_0(w, j);
    case TN_Q8_0: return tn_codes_q8_0(w, j);
    case TN_Q4_K: return tn_codes_q4_k(w, j);
    case TN_Q6_K: return tn_codes_q6_k(w, j);
    }
    __builtin_unreachable();
}

/* -- Products, by what the CPU has ------------------------------------------------------------- */

/* TN_PRODUCTS multiplies 32 unsigned w by 32 signed x and adds the products by twos or by fours.
   TN_FOURS makes eight sums of four from them. TN_FACTOR(j) is a shuffle that picks number j of 8
   shorts for each sum of TN_PRODUCTS. Number j is bytes 2 j and 2 j + 1 of each half of a register:
   0x0100 + 0x0202 j. A byte 0x80 makes a zero. */

/* With AVX2: 16 sums of two products as shorts. They are at most 2 * 128 * 127: no overflow. */
#define TN_UNIT(name) name##_avx2
#define TN_ASKED
#define TN_PRODUCTS(w, x) _mm256_maddubs_epi16(w, x)
#define TN_FOURS(products) _mm256_madd_epi16(products, _mm256_set1_epi16(1))
#define TN_LESS(a, b) _mm256_sub_epi16(a, b)
#define TN_FACTOR(j) _mm256_set1_epi16(0x0100 + 0x0202 * (j))
#include "dot_int8_rows.h"

/* With vpdpbusd: 8 sums of four products; Q6_K's, up to 4 * 32 * 127, fit into shorts. */
#if TN_UNITS
#if TN_UNITS == TN_AVX512_VNNI
#define TN_DPBUSD _mm256_dpbusd_epi32
#define TN_ASKED __attribute__((target("avx512vnni")))
#else
#define TN_DPBUSD _mm256_dpbusd_avx_epi32
#define TN_ASKED __attribute__((target("avxvnni")))
#endif
#define TN_UNIT(name) name##_vnni
#define TN_PRODUCTS(w, x) TN_DPBUSD(_mm256_setzero_si256(), w, x)
#define TN_FOURS(products) (products)
#define TN_LESS(a, b) _mm256_sub_epi32(a, b)
#define TN_FACTOR(j) _mm256_set1_epi32((int)0x80800100 + 0x0202 * (j))
#include "dot_int8_rows.h"
#else
#define tn_dot_int8_of_vnni tn_dot_int8_of_avx2
#endif

#if TN_UNITS == TN_AVX512_VNNI
#include "dot_int8_many.h"
#else
#define tn_many_of tn_dot_int8_of_vnni
#endif

tn_dot_fn tn_dot_int8_of(int type, int unit) {
    if (unit == TN_BY_ROW + 1) return tn_many_of(type);
    unit %= TN_BY_ROW;
    return unit ? tn_dot_int8_of_vnni(type) : tn_dot_int8_of_avx2(type);
}

#elif !TN_INT8
void tn_round_to_int8(float* rounded, ptrdiff_t x_row, const float* x, ptrdiff_t M, ptrdiff_t n,
                      int unit) {}
tn_dot_fn tn_dot_int8_of(int type, int unit) { return NULL; }
#endif
