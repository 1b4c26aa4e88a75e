/* The dot products of dot_int8.h, and the rounding of x, on arm64. */
#include "dot_int8.h"

enum {
    TN_ROWS = 4,     /* rows of w, and most rows of x, that are taken at a time */
    TN_AHEAD = 4096  /* bytes ahead that w is prefetched */
};

/* What the functions below compute, in plain C: what a block of 32 terms adds to one element of y.

       w    codes c, less 8 for Q4_0 and less 32 for Q6_K, with factors d and m; Q6_K has factors a,
            too, which are 1 for other types
       x    codes q with the scale s; `sum` is s times the sum of the codes */
static inline float tn_dot_32(float y, const int* c, const int* a, float d, float m,
                              const int8_t* q, float s, float sum) {
    int products[2] = {0, 0}; /* integers, of at most 24 bits when they are multiplied by a */
    for (int k = 0; k < 32; k++) products[k / 16] += c[k] * q[k];
    y -= m * sum;                                                          /* fused; Q4_K alone */
    return y + (float)(a[0] * products[0] + a[1] * products[1]) * (d * s); /* fused */
}

#if TN_INT8 == 2
#include <arm_neon.h>
#include <string.h>

/* -- Rows of x, rounded ---------------------------------------------------------------------- */

/* A row of n terms; its codes are stored by 8, `apart` bytes from one 8 to the next. */
static void tn_round_row(int8_t* q, ptrdiff_t apart, float* scale, const float* x, ptrdiff_t n) {
    /* A block whose largest magnitude is up to `least` becomes zeros, long before 127 / most would
       overflow (below 127 / 3.4e38). From `finite` on, a block counts as infinite or NaN. */
    const float least = 1e-30f, finite = 3e38f;
    float* sum = scale + tn_scales(n);
    memset(scale, 0, 2 * tn_scales(n) * sizeof *scale);
    for (ptrdiff_t b = 0; b < n / TN_RUN; b++, x += TN_RUN) {
        uint32x4_t bits = vdupq_n_u32(0);
        int32x4_t all[8], total = vdupq_n_s32(0);
        TN_UNROLL for (int i = 0; i < 8; i++) /* NaN is the largest */
            bits = vmaxq_u32(bits, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * i))));
        const uint32_t most_bits = vmaxvq_u32(bits);
        float most;
        memcpy(&most, &most_bits, sizeof most);
        const int none = !(most > least && most < finite);
        const float up = none ? 0 : 127 / most;
        TN_UNROLL for (int i = 0; i < 8; i++) {
            all[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), up));
            total = vaddq_s32(total, all[i]);
        }
        TN_UNROLL for (int i = 0; i < 8; i += 2, q += apart)
            vst1_s8(q, vmovn_s16(vcombine_s16(vmovn_s32(all[i]), vmovn_s32(all[i + 1]))));
        scale[b] = most <= least ? 0 : none ? __builtin_nanf("") : most / 127;
        sum[b] = scale[b] * (float)vaddvq_s32(total);
    }
}

/* Where the scales of row r of a pair begin: after the codes of both. */
TN_INLINE ptrdiff_t tn_pair_scales(ptrdiff_t n, int r) { return n / 2 + 2 * r * tn_scales(n); }

/* smmla reads pairs of rows: 8 codes of one row, then the same 8 of the other. An odd last row is
   stored alone. */
void tn_round_to_int8(float* rounded, ptrdiff_t x_row, const float* x, ptrdiff_t M, ptrdiff_t n,
                      int unit) {
    for (ptrdiff_t m = 0; m < M; m++) {
        float* row = rounded + m * x_row;
        if (unit == 2 && (m | 1) < M) {
            float* pair = rounded + (m & ~1) * x_row;
            tn_round_row((int8_t*)pair + 8 * (m & 1), 16, pair + tn_pair_scales(n, m & 1),
                         x + m * n, n);
        } else {
            tn_round_row((int8_t*)row, 8, row + n / 4, x + m * n, n);
        }
    }
}

/* -- What the types have in common ----------------------------------------------------------- */

/* The factors of four rows of w, for each of 8 blocks of 32 codes; lane i belongs to row i. */
typedef struct {
    float32x4_t d[TN_RUNS], m[TN_RUNS]; /* m: for Q4_K only */
    int32x4_t a[2 * TN_RUNS];           /* for Q6_K, one for 16 codes */
} tn_factors;

/* Transpose 16 bytes of each of four rows: the four first bytes, the four second ones, .. */
TN_INLINE void tn_by_byte(int8x16_t y[4], const int8x16_t x[4]) {
    const int16x8_t lower = vreinterpretq_s16_s8(vzip1q_s8(x[0], x[1]));
    const int16x8_t upper = vreinterpretq_s16_s8(vzip2q_s8(x[0], x[1]));
    const int16x8_t next_lower = vreinterpretq_s16_s8(vzip1q_s8(x[2], x[3]));
    const int16x8_t next_upper = vreinterpretq_s16_s8(vzip2q_s8(x[2], x[3]));
    y[0] = vreinterpretq_s8_s16(vzip1q_s16(lower, next_lower));
    y[1] = vreinterpretq_s8_s16(vzip2q_s16(lower, next_lower));
    y[2] = vreinterpretq_s8_s16(vzip1q_s16(upper, next_upper));
    y[3] = vreinterpretq_s8_s16(vzip2q_s16(upper, next_upper));
}

/* Widen 16 bytes of each of four rows to integers: y[k] has number k of all rows. */
TN_INLINE void tn_by_number(int32x4_t y[16], const int8x16_t x[4]) {
    int8x16_t bytes[4];
    tn_by_byte(bytes, x);
    TN_UNROLL for (int i = 0; i < 4; i++) {
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes[i])), high = vmovl_high_s8(bytes[i]);
        y[4 * i] = vmovl_s16(vget_low_s16(low));
        y[4 * i + 1] = vmovl_high_s16(low);
        y[4 * i + 2] = vmovl_s16(vget_low_s16(high));
        y[4 * i + 3] = vmovl_high_s16(high);
    }
}

/* The float16 at the same place of each of four rows. */
TN_INLINE float32x4_t tn_halves(const uint8_t* const w[TN_ROWS], ptrdiff_t at) {
    uint16_t d[TN_ROWS];
    TN_UNROLL for (int i = 0; i < TN_ROWS; i++) memcpy(d + i, w[i] + at, sizeof *d);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(d)));
}

/* Q4_K's scales, of 6 bits: the lower bits of bytes 0 to 3 are a[0..3], of bytes 4 to 7 b[0..3]. The
   upper 2 bits of these bytes belong to a[4..7] and b[4..7], whose lower 4 bits are in bytes 8 to 11.
   Returns all of a, then all of b. */
TN_INLINE int8x16_t tn_scales_q4_k(const tn_q4_k* block) {
    uint32_t s[3];
    memcpy(s, block->scales, sizeof s);
    const uint64_t halves = 0x0F0F0F0F, pairs = 0x30303030, six = halves | pairs;
    const uint64_t a = (s[0] & six) | ((s[2] & halves) | (s[0] >> 2 & pairs)) << 32;
    const uint64_t b = (s[1] & six) | ((s[2] >> 4 & halves) | (s[1] >> 2 & pairs)) << 32;
    return vcombine_s8(vcreate_s8(a), vcreate_s8(b));
}

/* The factors of up to 8 blocks of four rows. */
TN_INLINE void tn_factors_of(int type, tn_factors* f, const uint8_t* const w[TN_ROWS], int runs) {
    int8x16_t bytes[TN_ROWS];
    int32x4_t numbers[2 * TN_RUNS];
    float32x4_t d, m;
    switch (type) {
    case TN_Q4_0:
    case TN_Q8_0:
        for (int j = 0; j < runs; j++) f->d[j] = tn_halves(w, j * (tn_bytes_of_256(type) / TN_RUNS));
        break;
    case TN_Q4_K:
        TN_UNROLL for (int i = 0; i < TN_ROWS; i++) bytes[i] = tn_scales_q4_k((const tn_q4_k*)w[i]);
        tn_by_number(numbers, bytes);
        d = tn_halves(w, offsetof(tn_q4_k, d));
        m = tn_halves(w, offsetof(tn_q4_k, m));
        TN_UNROLL for (int j = 0; j < TN_RUNS; j++) {
            f->d[j] = vmulq_f32(d, vcvtq_f32_s32(numbers[j]));
            f->m[j] = vmulq_f32(m, vcvtq_f32_s32(numbers[TN_RUNS + j]));
        }
        break;
    case TN_Q6_K:
        TN_UNROLL for (int i = 0; i < TN_ROWS; i++)
            bytes[i] = vld1q_s8((const int8_t*)((const tn_q6_k*)w[i])->a);
        tn_by_number(f->a, bytes);
        d = tn_halves(w, offsetof(tn_q6_k, d));
        TN_UNROLL for (int j = 0; j < TN_RUNS; j++) f->d[j] = d;
    }
}

/* Bytes shifted to the left, or by a negative number to the right. */
TN_INLINE uint8x16_t tn_shifted(uint8x16_t bytes, int by) {
    return vshlq_u8(bytes, vdupq_n_s8((int8_t)by));
}

/* Codes 32 j + 16 h .. 32 j + 16 h + 15 of a row, from -128 to 127. */
TN_INLINE int8x16_t tn_codes(int type, const uint8_t* w, int j, int h) {
    const uint8x16_t nibble = vdupq_n_u8(15);
    uint8x16_t bytes;
    if (type == TN_Q8_0) return vld1q_s8((const int8_t*)((const tn_q8_0*)w)[j].codes + 16 * h);
    if (type == TN_Q4_0) {
        bytes = vld1q_u8(((const tn_q4_0*)w)[j].low);
        bytes = h ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, nibble);
        return vsubq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(8));
    }
    if (type == TN_Q4_K) {
        bytes = vld1q_u8(((const tn_q4_k*)w)->low + 32 * (j / 2) + 16 * h);
        return vreinterpretq_s8_u8(vandq_u8(tn_shifted(bytes, j & 1 ? -4 : 0), nibble));
    }
    /* Q6_K: bits 4 and 5 of c are two bits of high, from bit 2 (j % 4) on. */
    const tn_q6_k* block = (const tn_q6_k*)w;
    bytes = vld1q_u8(block->low + 64 * (j / 4) + 32 * (j % 2) + 16 * h);
    const uint8x16_t upper = tn_shifted(vld1q_u8(block->high + 32 * (j / 4) + 16 * h), 4 - j % 4 * 2);
    bytes = vorrq_u8(vandq_u8(tn_shifted(bytes, j % 4 < 2 ? 0 : -4), nibble),
                     vandq_u8(upper, vdupq_n_u8(48)));
    return vsubq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(32));
}

/* Lane i is the sum of the lanes of x[i]. */
TN_INLINE int32x4_t tn_sums_of_four(const int32x4_t x[4]) {
    return vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
}

/* -- Products, by what the CPU has ------------------------------------------------------------- */

/* TN_DOT adds the products of 16 codes by 16 codes to four sums. If TN_PAIRED is set, smmla multiplies
   two rows of w by two of x. */

#define TN_UNIT(name) name##_neon
#define TN_ASKED
#define TN_PAIRED 0
/* A product fits into 16 bits: it is at most 128 * 127. */
#define TN_DOT(sum, w, x)                                                      \
    vpadalq_s16(vpadalq_s16(sum, vmull_s8(vget_low_s8(w), vget_low_s8(x))), vmull_high_s8(w, x))
#include "dot_neon_rows.h"

#if TN_UNITS
#define TN_UNIT(name) name##_sdot
#define TN_ASKED __attribute__((target("arch=armv8.2-a+dotprod")))
#define TN_PAIRED 0
#define TN_DOT(sum, w, x) vdotq_s32(sum, w, x)
#include "dot_neon_rows.h"

#define TN_UNIT(name) name##_smmla
#define TN_ASKED __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define TN_PAIRED 1
#define TN_DOT(sum, w, x) vdotq_s32(sum, w, x)
#include "dot_neon_rows.h"
#else
#define tn_dot_int8_of_sdot tn_dot_int8_of_neon
#define tn_dot_int8_of_smmla tn_dot_int8_of_neon
#endif

tn_dot_fn tn_dot_int8_of(int type, int unit) {
    unit %= TN_BY_ROW; /* there is one way for any number of rows */
    return unit == 2 ? tn_dot_int8_of_smmla(type)
        : unit == 1 ? tn_dot_int8_of_sdot(type) : tn_dot_int8_of_neon(type);
}
#endif
