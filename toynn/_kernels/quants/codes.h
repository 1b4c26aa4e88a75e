/* A run of 32 codes to floats, in whole registers: shared by all quantized types.

   Codes are bytes, or some bits of bytes; each half of a run has a scale of its own. Written with
   the vector extensions of GCC and clang, and the instructions that they lack: widening bytes to
   integers, float16 to float32. With other compilers a register is one float, and vectorising is
   up to the compiler. */
#ifndef TOYNN_CODES_H
#define TOYNN_CODES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "gemm.h"

#if defined(__AVX512F__) || defined(__AVX2__) || (defined(__SSE2__) && !defined(__AVX__))
#include <immintrin.h>
#define TN_CODES TN_V
#elif defined(__aarch64__) && TN_GNU
#include <arm_neon.h>
#define TN_CODES TN_V
#else
#define TN_CODES 1
#endif

#if TN_CODES > 1
typedef int tn_ints __attribute__((vector_size(4 * TN_V)));
typedef tn_vec tn_reals;
#define TN_REALS(q) __builtin_convertvector(q, tn_vec)
#define TN_PUT(y, x) tn_store(y, x)
#else
typedef int tn_ints;
typedef float tn_reals;
#define TN_REALS(q) ((float)(q))
#define TN_PUT(y, x) (*(y) = (x))
#endif

#ifndef TN_INLINE
#define TN_INLINE static inline
#endif

/* A float16 as a float32, exactly: IEEE 754, 5 bits of exponent with bias 15. Without F16C's
   instruction: for a normal number the exponent's bias becomes 127. Subnormal (m 2^-24): 0.5 with m
   in its last bits is 0.5 + m 2^-24. Infinity and NaN have all bits of the exponent set, before and
   after. */
TN_INLINE float tn_half(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    union { float f; int32_t i; } normal, subnormal;
    const int32_t a = h & 0x7FFF;
    normal.i = (a << 13) + (112 << 23) + (a >= 0x7C00 ? 112 << 23 : 0);
    subnormal.i = a + (126 << 23);
    subnormal.f -= 0.5f;
    normal.i = (a < 0x0400 ? subnormal.i : normal.i) | (int32_t)((uint32_t)(h & 0x8000) << 16);
    return normal.f;
#endif
}

/* y[i] = the float16 at 2 i bytes. */
TN_INLINE void tn_halves(float* y, const uint8_t* raw, ptrdiff_t n) {
    ptrdiff_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(raw + 2 * i))));
#endif
    for (; i < n; i++) y[i] = tn_half((uint16_t)(raw[2 * i] | raw[2 * i + 1] << 8));
}

/* The next bytes as integers, unsigned and signed, as many as a register holds. */
TN_INLINE tn_ints tn_unsigned(const uint8_t* q) {
#if defined(__AVX512F__)
    return (tn_ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)q));
#elif defined(__AVX2__)
    return (tn_ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)q));
#elif TN_CODES > 1 && defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128();
    int32_t four;
    memcpy(&four, q, 4);
    return (tn_ints)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
#elif TN_CODES > 1
    uint32_t four;
    memcpy(&four, q, 4);
    return (tn_ints)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
    return *q;
#endif
}

TN_INLINE tn_ints tn_signed(const int8_t* q) {
#if defined(__AVX512F__)
    return (tn_ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)q));
#elif defined(__AVX2__)
    return (tn_ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)q));
#elif TN_CODES > 1 && defined(__SSE2__)
    int32_t four;
    memcpy(&four, q, 4);
    const __m128i bytes = _mm_cvtsi32_si128(four), pairs = _mm_unpacklo_epi8(bytes, bytes);
    return (tn_ints)_mm_srai_epi32(_mm_unpacklo_epi16(pairs, pairs), 24);
#elif TN_CODES > 1
    uint32_t four;
    memcpy(&four, q, 4);
    return (tn_ints)vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
#else
    return *q;
#endif
}

/* y[j] = scale[j / 16] (q[j] - offset) - least[j / 16]. q[j] = low[j] >> shift & mask; unless high is
   NULL, (high[j] >> high_shift & high_mask) << place is added to it. least may be NULL, for 0. */
TN_INLINE void tn_bits_run(float* y, const uint8_t* low, int shift, int mask, const uint8_t* high,
                           int high_shift, int high_mask, int place, int offset,
                           const float* scale, const float* least) {
    for (int j = 0; j < 32; j += TN_CODES) {
        tn_ints q = (tn_unsigned(low + j) >> shift) & mask;
        if (high) q |= ((tn_unsigned(high + j) >> high_shift) & high_mask) << place;
        tn_reals x = TN_REALS(q - offset) * scale[j / 16];
        if (least) x -= least[j / 16];
        TN_PUT(y + j, x);
    }
}

/* Lane i is 16 if bit j + i is set, else 0. */
TN_INLINE tn_ints tn_fifth_bits(uint32_t bits, int j) {
#if defined(__AVX512F__)
    return (tn_ints)_mm512_maskz_set1_epi32((__mmask16)(bits >> j), 16);
#elif defined(__AVX2__)
    const tn_ints place = {0, 1, 2, 3, 4, 5, 6, 7};
    return (((int)(bits >> j & 255) >> place) & 1) << 4;
#elif TN_CODES > 1
    const tn_ints place = {1, 2, 4, 8};
    return (((int)(bits >> j & 15) & place) != 0) & 16;
#else
    return (int)(bits >> j & 1) << 4;
#endif
}

/* The 16 numbers scale (q - offset) + least for codes q of 4 bits; least may be NULL, for 0. With
   AVX-512 they fill a register, from which codes pick. */
#if defined(__AVX512F__)
typedef tn_reals tn_line;

TN_INLINE tn_line tn_line_of(float scale, int offset, const float* least) {
    const tn_ints q = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const tn_reals x = TN_REALS(q - offset) * scale;
    return least ? x + *least : x;
}

TN_INLINE tn_reals tn_on_line(tn_line line, tn_ints q) {
    return (tn_reals)_mm512_permutexvar_ps((__m512i)q, (__m512)line);
}
#else
typedef struct { float scale, least; int offset, sum; } tn_line;

TN_INLINE tn_line tn_line_of(float scale, int offset, const float* least) {
    return (tn_line){scale, least ? *least : 0, offset, least != NULL};
}

TN_INLINE tn_reals tn_on_line(tn_line line, tn_ints q) {
    const tn_reals x = TN_REALS((q & 15) - line.offset) * line.scale;
    return line.sum ? x + line.least : x;
}
#endif

/* y[j] = scale (q[j] - offset) + least; least may be NULL, for 0. Bits 0..3 of 16 bytes are codes
   0..15, bits 4..7 codes 16..31. Unless high is NULL, its bit j is bit 4 of q[j]. */
TN_INLINE void tn_nibbles_run(float* y, const uint8_t* low, const uint8_t* high, int offset,
                              float scale, const float* least) {
    const tn_line line = tn_line_of(scale, offset, least);
    uint32_t bits = 0;
    if (high) memcpy(&bits, high, 4);
    for (int j = 0; j < 16; j += TN_CODES) {
        const tn_ints both = tn_unsigned(low + j);
        if (!high) {
            TN_PUT(y + j, tn_on_line(line, both));
            TN_PUT(y + j + 16, tn_on_line(line, both >> 4));
            continue;
        }
        const tn_ints a = (both & 15) | tn_fifth_bits(bits, j);
        const tn_ints b = both >> 4 | tn_fifth_bits(bits, j + 16);
        tn_reals x = TN_REALS(a - offset) * scale, z = TN_REALS(b - offset) * scale;
        if (least) {
            x += *least;
            z += *least;
        }
        TN_PUT(y + j, x);
        TN_PUT(y + j + 16, z);
    }
}

/* y[j] = d a[j], the scales of up to 16 runs or half runs. */
TN_INLINE void tn_times(float* y, const int8_t* a, float d) {
    for (int j = 0; j < 16; j += TN_CODES) TN_PUT(y + j, TN_REALS(tn_signed(a + j)) * d);
}

/* a[0..7] and b[0..7], which is a[8..15], 6 bits each, from 12 bytes, four at a time.

   Bytes 0..3 hold a[0..3], bytes 4..7 hold b[0..3]. The upper 2 bits of these bytes belong to
   a[4..7] and b[4..7]. The lower 4 bits of those are the two halves of bytes 8..11. */
TN_INLINE void tn_scales_k(int8_t* a, const uint8_t* raw) {
    const uint32_t halves = 0x0F0F0F0F, pairs = 0x30303030, six = halves | pairs;
    uint32_t s[3];
    memcpy(s, raw, sizeof s);
    const uint32_t four[4] = {
        s[0] & six, (s[2] & halves) | (s[0] >> 2 & pairs),
        s[1] & six, (s[2] >> 4 & halves) | (s[1] >> 2 & pairs),
    };
    memcpy(a, four, sizeof four);
}

/* Two runs of Q4_K: y[32 r + j] = scale[r] q - least[r]. q is bits 4 r .. 4 r + 3 of codes[j]. */
TN_INLINE void tn_q4_k_pair(float* y, const uint8_t* codes, const float* scale,
                            const float* least) {
    const float plus[2] = {-least[0], -least[1]};
    const tn_line a = tn_line_of(scale[0], 0, plus), b = tn_line_of(scale[1], 0, plus + 1);
    for (int j = 0; j < 32; j += TN_CODES) {
        const tn_ints both = tn_unsigned(codes + j);
        TN_PUT(y + j, tn_on_line(a, both));
        TN_PUT(y + 32 + j, tn_on_line(b, both >> 4));
    }
}

/* y[j] = scale[j / 16] (q[j] - offset). */
TN_INLINE void tn_bytes_run(float* y, const int8_t* q, int offset, const float* scale) {
    for (int j = 0; j < 32; j += TN_CODES) {
        TN_PUT(y + j, TN_REALS(tn_signed(q + j) - offset) * scale[j / 16]);
    }
}

/* q - 32. Bits 0..3 of q are those of low, bits 4 and 5 are bits 2 r and 2 r + 1 of high. */
TN_INLINE tn_reals tn_six_bits(tn_ints low, tn_ints high, int r) {
    const tn_ints upper = r < 2 ? high << (4 - 2 * r) : high >> (2 * r - 4);
    return TN_REALS(((low & 15) | (upper & 48)) - 32);
}

/* Four runs of Q6_K: y[32 r + j] = scale[2 r + j / 16] (q - 32). Bits 0..3 of q are half a byte of low:
   of its first 32 bytes for r = 0 and 2, of the next 32 for r = 1 and 3. Bits 4 and 5 are bits 2 r
   and 2 r + 1 of high[j]. */
TN_INLINE void tn_q6_k_four(float* y, const uint8_t* low, const uint8_t* high, const float* scale) {
    for (int j = 0; j < 32; j += TN_CODES) {
        const tn_ints a = tn_unsigned(low + j), b = tn_unsigned(low + 32 + j);
        const tn_ints h = tn_unsigned(high + j);
        TN_PUT(y + j, tn_six_bits(a, h, 0) * scale[j / 16]);
        TN_PUT(y + 32 + j, tn_six_bits(b, h, 1) * scale[2 + j / 16]);
        TN_PUT(y + 64 + j, tn_six_bits(a >> 4, h, 2) * scale[4 + j / 16]);
        TN_PUT(y + 96 + j, tn_six_bits(b >> 4, h, 3) * scale[6 + j / 16]);
    }
}

/* Look up 32 numbers by 4-bit codes, with a byte shuffle if the CPU has one. Of each `at_a_time` bytes
   of low (16 or 8), the lower halves are the first codes and the upper halves the next. */
TN_INLINE void tn_lookup(int8_t* q, const int8_t* table, const uint8_t* low, int at_a_time) {
#if defined(__SSSE3__) && TN_CODES > 1
    const __m128i numbers = _mm_loadu_si128((const __m128i*)table);
    const __m128i codes = _mm_loadu_si128((const __m128i*)low), nibble = _mm_set1_epi8(15);
    const __m128i a = _mm_shuffle_epi8(numbers, _mm_and_si128(codes, nibble));
    const __m128i b = _mm_shuffle_epi8(numbers, _mm_and_si128(_mm_srli_epi16(codes, 4), nibble));
    _mm_storeu_si128((__m128i*)q, at_a_time == 16 ? a : _mm_unpacklo_epi64(a, b));
    _mm_storeu_si128((__m128i*)(q + 16), at_a_time == 16 ? b : _mm_unpackhi_epi64(a, b));
#elif defined(__aarch64__) && TN_CODES > 1
    const int8x16_t numbers = vld1q_s8(table);
    const uint8x16_t codes = vld1q_u8(low);
    const int8x16_t a = vqtbl1q_s8(numbers, vandq_u8(codes, vdupq_n_u8(15)));
    const int8x16_t b = vqtbl1q_s8(numbers, vshrq_n_u8(codes, 4));
    vst1q_s8(q, at_a_time == 16 ? a : vcombine_s8(vget_low_s8(a), vget_low_s8(b)));
    vst1q_s8(q + 16, at_a_time == 16 ? b : vcombine_s8(vget_high_s8(a), vget_high_s8(b)));
#else
    for (int i = 0; i < 16; i++) {
        const int j = i + i / at_a_time * at_a_time;
        q[j] = table[low[i] & 15];
        q[j + at_a_time] = table[low[i] >> 4];
    }
#endif
}

/* The numbers of IQ4_NL and IQ4_XS, and twice the numbers of FP4 (E2M1). */
static const int8_t tn_iq4[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};
static const int8_t tn_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#endif
