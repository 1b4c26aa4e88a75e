/* Dot products of a row of x with rows of blocks, whose codes are multiplied as they are: in 8 bits.

   x is rounded by blocks of 32: x[j] = s q[j], q from -127 to 127, s = max |x| / 127; then for a block
   of w = d c, of codes c,

       sum_j x[j] w[j] = s d sum_j q[j] c[j]

   whose sum vpdpbusd makes of integers, exactly, 32 terms an instruction; it takes unsigned codes by
   signed ones, so that signs of w go over to x. Where w = d c - m, the sum of q is needed too. What is
   lost is at most s / 2 of each x. A block of x with NaN or infinity gives NaN.
   AVX512_VNNI is asked for by these functions alone, not by the module.
   The layouts of blocks are those of _blocks.pxd and _superblocks.pxd. */
#ifndef TOYNN_DOT_INT8_H
#define TOYNN_DOT_INT8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include <immintrin.h>
#define TN_INT8 1
#define TN_VNNI __attribute__((target("avx512vnni,f16c")))
#define TN_RUN 32 /* terms of a block of x */

/* Round n terms of x, whole blocks: codes q, and of each block its scale, and the scale times the sum
   of its codes. */
TN_VNNI static inline void tn_round_to_int8(int8_t* q, float* scale, float* sum, const float* x,
                                            ptrdiff_t n) {
    for (ptrdiff_t b = 0; b < n / TN_RUN; b++, x += TN_RUN, q += TN_RUN) {
        const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        const uint32_t bits = _mm512_reduce_max_epu32(_mm512_max_epu32(
            (__m512i)_mm512_abs_ps(x0), (__m512i)_mm512_abs_ps(x1)));
        float most;
        memcpy(&most, &bits, sizeof most);
        const int none = !(most > 1e-30f && most < 3e38f);
        const __m512 up = _mm512_set1_ps(none ? 0 : 127 / most);
        const __m512i q0 = _mm512_cvtps_epi32(x0 * up), q1 = _mm512_cvtps_epi32(x1 * up);
        _mm_storeu_si128((__m128i*)q, _mm512_cvtsepi32_epi8(q0));
        _mm_storeu_si128((__m128i*)(q + 16), _mm512_cvtsepi32_epi8(q1));
        scale[b] = most <= 1e-30f ? 0 : none ? __builtin_nanf("") : most / 127;
        sum[b] = scale[b] * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    }
}

TN_VNNI static inline float tn_float16(const uint8_t* at) {
    uint16_t h;
    memcpy(&h, at, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

TN_VNNI static inline __m256i tn_bytes(const void* at) {
    return _mm256_loadu_si256((const __m256i*)at);
}

/* Eight sums of four products: unsigned codes, and signed ones. */
TN_VNNI static inline __m256i tn_dot_unsigned(__m256i w, __m256i x) {
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x);
}

TN_VNNI static inline __m256i tn_dot_signed(__m256i w, __m256i x) {
    return tn_dot_unsigned(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

TN_VNNI static inline __m256 tn_add_scaled(__m256 acc, __m256i sums, float scale) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), acc);
}

TN_VNNI static inline float tn_sum8(__m256 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Q8_0: d, 32 signed codes. */
TN_VNNI static inline float tn_dot_q8_0(const uint8_t* w, const int8_t* q, const float* scale,
                                        const float* sum, ptrdiff_t n) {
    __m256 acc = _mm256_setzero_ps();
    for (ptrdiff_t b = 0; b < n / 32; b++, w += 34, q += 32)
        acc = tn_add_scaled(acc, tn_dot_signed(tn_bytes(w + 2), tn_bytes(q)),
                            tn_float16(w) * scale[b]);
    return tn_sum8(acc);
}

/* Q4_0: d, 16 bytes, whose lower halves come first; w = d (c - 8). */
TN_VNNI static inline float tn_dot_q4_0(const uint8_t* w, const int8_t* q, const float* scale,
                                        const float* sum, ptrdiff_t n) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256 acc = _mm256_setzero_ps();
    float eights = 0;
    for (ptrdiff_t b = 0; b < n / 32; b++, w += 18, q += 32) {
        const __m128i bytes = _mm_loadu_si128((const __m128i*)(w + 2));
        const __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
        const float d = tn_float16(w);
        const __m256i codes = _mm256_and_si256(both, low);
        acc = tn_add_scaled(acc, tn_dot_unsigned(codes, tn_bytes(q)), d * scale[b]);
        eights += d * sum[b];
    }
    return tn_sum8(acc) - 8 * eights;
}

/* Q4_K: d, m, 12 bytes of a and b, 128 bytes of halves; w = d a c - m b for each 32. */
TN_VNNI static inline float tn_dot_q4_k(const uint8_t* w, const int8_t* q, const float* scale,
                                        const float* sum, ptrdiff_t n) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256 acc = _mm256_setzero_ps(), least = acc;
    for (; n > 0; n -= 256, w += 144, scale += 8, sum += 8) {
        uint32_t s[3]; /* 4 of a, 4 of b, in 6 bits, then halves of 4 of each; upper bits in the first */
        memcpy(s, w + 4, sizeof s);
        const uint64_t halves = 0x0F0F0F0F, pairs = 0x30303030, six = 0x3F3F3F3F;
        const uint64_t a = (s[0] & six) | ((s[2] & halves) | (s[0] >> 2 & pairs)) << 32;
        const uint64_t b = (s[1] & six) | ((s[2] >> 4 & halves) | (s[1] >> 2 & pairs)) << 32;
        const __m256 as = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)a)));
        const __m256 bs = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)b)));
        float by[8];
        _mm256_storeu_ps(by, as * _mm256_set1_ps(tn_float16(w)) * _mm256_loadu_ps(scale));
        least += bs * _mm256_set1_ps(tn_float16(w + 2)) * _mm256_loadu_ps(sum);
        for (int j = 0; j < 8; j++, q += 32) {
            __m256i codes = tn_bytes(w + 16 + 32 * (j / 2));
            if (j & 1) codes = _mm256_srli_epi16(codes, 4);
            codes = _mm256_and_si256(codes, low);
            acc = tn_add_scaled(acc, tn_dot_unsigned(codes, tn_bytes(q)), by[j]);
        }
    }
    return tn_sum8(acc - least);
}

/* Q6_K: 128 bytes of lower halves, 64 of pairs of upper bits, 16 signed a, d; w = d a (c - 32). */
TN_VNNI static inline float tn_dot_q6_k(const uint8_t* w, const int8_t* q, const float* scale,
                                        const float* sum, ptrdiff_t n) {
    const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(48);
    __m256 acc = _mm256_setzero_ps();
    for (; n > 0; n -= 256, w += 210, scale += 8) {
        const int8_t* a = (const int8_t*)(w + 192);
        const float d = tn_float16(w + 208);
        for (int j = 0; j < 8; j++, q += 32) {
            __m256i codes = tn_bytes(w + 64 * (j / 4) + 32 * (j % 2));
            const __m256i bits = tn_bytes(w + 128 + 32 * (j / 4));
            if (j % 4 >= 2) codes = _mm256_srli_epi16(codes, 4);
            const __m256i upper = j % 4 == 0 ? _mm256_slli_epi16(bits, 4)
                : j % 4 == 1 ? _mm256_slli_epi16(bits, 2)
                : j % 4 == 2 ? bits : _mm256_srli_epi16(bits, 2);
            codes = _mm256_or_si256(_mm256_and_si256(codes, low), _mm256_and_si256(upper, pair));
            codes = _mm256_sub_epi8(codes, _mm256_set1_epi8(32));
            const __m256i by = _mm256_set_m128i(_mm_set1_epi32(a[2 * j + 1]), _mm_set1_epi32(a[2 * j]));
            const __m256i sums = _mm256_mullo_epi32(tn_dot_signed(codes, tn_bytes(q)), by);
            acc = tn_add_scaled(acc, sums, d * scale[j]);
        }
    }
    return tn_sum8(acc);
}

/* Row w of a type that GGUF numbers, n terms. */
TN_VNNI static inline float tn_dot_int8(int type, const uint8_t* w, const int8_t* q,
                                        const float* scale, const float* sum, ptrdiff_t n) {
    switch (type) {
    case 2: return tn_dot_q4_0(w, q, scale, sum, n);
    case 8: return tn_dot_q8_0(w, q, scale, sum, n);
    case 12: return tn_dot_q4_k(w, q, scale, sum, n);
    default: return tn_dot_q6_k(w, q, scale, sum, n);
    }
}

#else
/* Never called: nothing is multiplied in 8 bits where there is no AVX512_VNNI. */
#define TN_INT8 0
static inline void tn_round_to_int8(int8_t* q, float* scale, float* sum, const float* x,
                                    ptrdiff_t n) {}
static inline float tn_dot_int8(int type, const uint8_t* w, const int8_t* q, const float* scale,
                                const float* sum, ptrdiff_t n) {
    return 0;
}
#endif

#endif
