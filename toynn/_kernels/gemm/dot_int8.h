/* Dot products of rows of x with rows of blocks, whose codes are multiplied as they are: in 8 bits.

   x is rounded by blocks of 32: x[j] = s q[j], q from -127 to 127, s = max |x| / 127; then for 32
   codes c of w = d c - m, d and m theirs,

       sum_j x[j] w[j] = s d sum_j q[j] c[j] - m s sum_j q[j]

   whose sums are of integers, exactly. What is lost is at most s / 2 of each x. A block of x with
   NaN or infinity gives NaN.

   Codes of up to 8 blocks of 32 are taken at a time: their factors d side by side, and each block's
   products with one instruction or two (dot_int8_rows.h, which is here twice: with vpdpbusd where
   the CPU has it, and with what AVX2 has). The integers are the same and the floats in the same
   order, so that every CPU gives the same bits. Instructions that not all CPUs of a level have are
   asked for by these functions alone, not by the module: whoever calls them has made sure of them
   (cpu.pyx). The layouts of blocks are those of _blocks.pxd and _superblocks.pxd. */
#ifndef TOYNN_DOT_INT8_H
#define TOYNN_DOT_INT8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "gemm.h"

/* y[m * y_row + i], for N rows of w by M rows of x, of n terms. */
typedef void (*tn_dot_fn)(float* y, ptrdiff_t y_row, const uint8_t* w, ptrdiff_t w_row, ptrdiff_t N,
                          const float* x, ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n);

/* What TN_VNNI may be: which vpdpbusd this build has beside what AVX2 has. */
#define TN_AVX_VNNI 1
#define TN_AVX512_VNNI 2

enum {
    TN_RUN = 32,     /* terms of a block of x */
    TN_RUNS = 8,     /* blocks that are taken at a time */
    TN_ROWS = 4,     /* rows of x that are taken at a time, at most */
    TN_AHEAD = 4096  /* bytes ahead at which w is fetched: CPUs stop at the end of a page */
};

/* Scales of a row of n terms: one for each block, then zeros. */
static inline ptrdiff_t tn_scales(ptrdiff_t n) {
    return (n / TN_RUN + TN_RUNS - 1) / TN_RUNS * TN_RUNS;
}

/* Floats of a rounded row: its codes, the scales, and the scales times the sums of codes. */
static inline ptrdiff_t tn_int8_floats(ptrdiff_t n) { return n / 4 + 2 * tn_scales(n); }

#if defined(__AVX2__) && defined(__GNUC__)
#include <immintrin.h>
#define TN_INT8 1
#define TN_F16C __attribute__((target("f16c")))

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

/* Round n terms of x, whole blocks. */
static inline void tn_round_to_int8(float* row, const float* x, ptrdiff_t n) {
    int8_t* q = (int8_t*)row;
    float* scale = row + n / 4;
    float* sum = scale + tn_scales(n);
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
        const int none = !(most > 1e-30f && most < 3e38f);
        const __m256 up = _mm256_set1_ps(none ? 0 : 127 / most);
        TN_UNROLL for (int i = 0; i < 4; i++) {
            all[i] = _mm256_cvtps_epi32(_mm256_loadu_ps(x + 8 * i) * up);
            total = _mm256_add_epi32(total, all[i]);
        }
        const __m256i halves = _mm256_packs_epi32(all[0], all[1]);
        const __m256i bytes = _mm256_packs_epi16(halves, _mm256_packs_epi32(all[2], all[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i*)q, _mm256_permutevar8x32_epi32(bytes, order));
        scale[b] = most <= 1e-30f ? 0 : none ? __builtin_nanf("") : most / 127;
        sum[b] = scale[b] * (float)tn_total(total);
    }
}

/* The float16 in front of each of so many blocks, as floats. */
TN_INLINE TN_F16C __m256 tn_factors(const uint8_t* w, ptrdiff_t nbytes, int blocks) {
    uint16_t d[TN_RUNS] = {0};
    TN_UNROLL for (int i = 0; i < TN_RUNS; i++) {
        if (i < blocks) memcpy(d + i, w + i * nbytes, sizeof *d);
    }
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)d));
}

TN_INLINE TN_F16C __m256 tn_factor(const uint8_t* w) {
    uint16_t d;
    memcpy(&d, w, sizeof d);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)d));
}

TN_INLINE __m256i tn_bytes(const void* at) { return _mm256_loadu_si256((const __m256i*)at); }

TN_INLINE __m256 tn_8_bytes(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)x)));
}

TN_INLINE float tn_sum8(__m256 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The four types, as GGUF numbers them, and the bytes of 256 terms of each.
     Q4_0   8 times d, 16 bytes, whose lower halves come first           w = d c - 8 d
     Q8_0   8 times d, 32 signed codes                                   w = d c
     Q4_K   d, m, 12 bytes of a and b, 128 bytes of halves               w = d a c - m b
     Q6_K   128 bytes of lower halves, 64 of upper bits, 16 signed a, d  w = d a (c - 32) */
enum { TN_Q4_0 = 2, TN_Q8_0 = 8, TN_Q4_K = 12, TN_Q6_K = 14 };

TN_INLINE ptrdiff_t tn_bytes_of_256(int type) {
    return type == TN_Q4_0 ? 8 * 18 : type == TN_Q8_0 ? 8 * 34 : type == TN_Q4_K ? 144 : 210;
}

/* d of up to 8 blocks of 32, but for what Q6_K has in integers; and m, where there is one. */
TN_INLINE TN_F16C __m256 tn_d_and_m(int type, const uint8_t* w, int runs, __m256* m) {
    *m = _mm256_setzero_ps();
    if (type == TN_Q8_0) return tn_factors(w, 34, runs);
    if (type == TN_Q6_K) return tn_factor(w + 208);
    if (type == TN_Q4_0) {
        const __m256 d = tn_factors(w, 18, runs);
        *m = d * _mm256_set1_ps(8);
        return d;
    }
    uint32_t s[3]; /* 4 of a, 4 of b, in 6 bits, then halves of 4 of each; upper bits in the first */
    memcpy(s, w + 4, sizeof s);
    const uint64_t halves = 0x0F0F0F0F, pairs = 0x30303030, six = 0x3F3F3F3F;
    const uint64_t a = (s[0] & six) | ((s[2] & halves) | (s[0] >> 2 & pairs)) << 32;
    const uint64_t b = (s[1] & six) | ((s[2] >> 4 & halves) | (s[1] >> 2 & pairs)) << 32;
    *m = tn_8_bytes(b) * tn_factor(w + 2);
    return tn_8_bytes(a) * tn_factor(w);
}

/* Codes 32 j .. 32 j + 31: signed ones of Q8_0, else unsigned. */
TN_INLINE __m256i tn_codes(int type, const uint8_t* w, int j) {
    const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(48);
    if (type == TN_Q8_0) return tn_bytes(w + 34 * j + 2);
    if (type == TN_Q4_0) {
        const __m128i bytes = _mm_loadu_si128((const __m128i*)(w + 18 * j + 2));
        return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), low);
    }
    if (type == TN_Q4_K) {
        const __m256i bytes = tn_bytes(w + 16 + 32 * (j / 2));
        return _mm256_and_si256(j & 1 ? _mm256_srli_epi16(bytes, 4) : bytes, low);
    }
    const __m256i bytes = tn_bytes(w + 64 * (j / 4) + 32 * (j % 2));
    const __m256i bits = tn_bytes(w + 128 + 32 * (j / 4));
    const __m256i upper = j % 4 == 0 ? _mm256_slli_epi16(bits, 4)
        : j % 4 == 1 ? _mm256_slli_epi16(bits, 2)
        : j % 4 == 2 ? bits : _mm256_srli_epi16(bits, 2);
    return _mm256_or_si256(_mm256_and_si256(j % 4 < 2 ? bytes : _mm256_srli_epi16(bytes, 4), low),
                           _mm256_and_si256(upper, pair));
}

/* The 16 a of Q6_K as shorts: those of the first halves of blocks, then those of the second. */
TN_INLINE __m256i tn_a(const uint8_t* w) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i a = _mm_loadu_si128((const __m128i*)(w + 192));
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(a, order));
}

/* With AVX2: 16 sums of two products, shorts, which cannot overflow: 2 * 128 * 127 at most. */
#define TN_UNIT(name) name##_avx2
#define TN_ASKED TN_F16C
#define TN_PRODUCTS(w, x) _mm256_maddubs_epi16(w, x)
#define TN_FOURS(products) _mm256_madd_epi16(products, _mm256_set1_epi16(1))
#define TN_LESS(a, b) _mm256_sub_epi16(a, b)
#define TN_FACTOR(j) _mm256_set1_epi16(0x0100 + 0x0202 * (j))
#include "dot_int8_rows.h"

/* With vpdpbusd: 8 sums of four products. Known to GCC 11, clang 12 and their successors. */
#if defined(__AVX512VL__)
#define TN_VNNI TN_AVX512_VNNI
#define TN_DPBUSD _mm256_dpbusd_epi32
#define TN_ASKED __attribute__((target("f16c,avx512vnni")))
#elif defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define TN_VNNI TN_AVX_VNNI
#define TN_DPBUSD _mm256_dpbusd_avx_epi32
#define TN_ASKED __attribute__((target("f16c,avxvnni")))
#else
#define TN_VNNI 0
#endif

#if TN_VNNI
#define TN_UNIT(name) name##_vnni
#define TN_PRODUCTS(w, x) TN_DPBUSD(_mm256_setzero_si256(), w, x)
#define TN_FOURS(products) (products)
#define TN_LESS(a, b) _mm256_sub_epi32(a, b)
#define TN_FACTOR(j) _mm256_set1_epi32((int)0x80800100 + 0x0202 * (j))
#include "dot_int8_rows.h"
#else
#define tn_dot_int8_of_vnni tn_dot_int8_of_avx2
#endif

/* What multiplies a type that GGUF numbers. */
static inline tn_dot_fn tn_dot_int8_of(int type, int vnni) {
    return vnni ? tn_dot_int8_of_vnni(type) : tn_dot_int8_of_avx2(type);
}

#else
/* Never called: nothing is multiplied in 8 bits where there is no AVX2. */
#define TN_INT8 0
#define TN_VNNI 0
static inline void tn_round_to_int8(float* row, const float* x, ptrdiff_t n) {}
static inline tn_dot_fn tn_dot_int8_of(int type, int vnni) { return NULL; }
#endif

#endif
