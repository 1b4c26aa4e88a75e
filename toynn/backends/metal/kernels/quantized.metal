// The types in which a row of a matrix may be stored, by their GGUF numbers: bytes in, float32 out.
//
// A row is a whole number of blocks, one after another. d and m are float16. q[j] is the code of element j. a[s]
// and b[s] are small integers of sub-block s. All numbers are little-endian.
//
//   type      of bytes  in this order                            element j
//   F32    0   1     4  a float32                                the same number
//   F16    1   1     2  a float16                                the same number
//   BF16  30   1     2  the upper half of a float32              the same number
//   Q8_0   8  32    34  d, 32 int8                               y[j] = d q[j]
//   Q4_0   2  32    18  d, 16 of low                             y[j] = d (q[j] - 8)
//   Q4_1   3  32    20  d, m, 16 of low                          y[j] = d q[j] + m
//   Q5_0   6  32    22  d, 4 of high, 16 of low                  y[j] = d (q[j] - 16)
//   Q5_1   7  32    24  d, m, 4 of high, 16 of low               y[j] = d q[j] + m
//   Q2_K  10 256    84  16 of b and a, 64 of pairs, d, m         y[j] = d a[s] q[j] - m b[s]
//   Q3_K  11 256   110  32 high, 64 of pairs, 12 of scales, d    y[j] = d (a[s] - 32) (q[j] - 4)
//   Q4_K  12 256   144  d, m, 12 of scales, 128 of low           y[j] = d a[s] q[j] - m b[s]
//   Q5_K  13 256   176  d, m, 12 of scales, 32 high, 128 of low  y[j] = d a[s] q[j] - m b[s]
//   Q6_K  14 256   210  128 of low, 64 of high, 16 int8 a, d     y[j] = d a[s] (q[j] - 32)
//   IQ4_NL 20 32    18  d, 16 of codes                           y[j] = d IQ4[q[j]]
//   IQ4_XS 23 256  136  d, 2 of high, 4 of low, 128 of codes     y[j] = d (a[s] - 32) IQ4[q[j]]
//   TQ1_0 34 256    54  48 of fives, 4 of fours, d               y[j] = d (q[j] - 1)
//   TQ2_0 35 256    66  64 of pairs, d                           y[j] = d (q[j] - 1)
//   IQ1_S 19 256    50  d, 32 of low, 8 words of high and a      y[j] = d (2 a[s] + 1) (g[j] +- 1/8)
//   IQ1_M 29 256    56  32 of low, 16 of high, 4 words of a      y[j] = d (2 a[s] + 1) (g[j] +- 1/8)
//   IQ2_XXS 16 256  66  d, 8 times: 4 of low, 4 of seven         y[j] = d (a[s] + 1/2) / 4 g[j]
//   IQ2_XS 17 256   74  d, 32 words of 9 bits and seven, 8 of a  y[j] = d (a[s] + 1/2) / 4 g[j]
//   IQ2_S 22 256    82  d, 32 low, 32 signs, 8 of high, 8 of a   y[j] = d (a[s] + 1/2) / 4 g[j]
//   IQ3_XXS 18 256  98  d, 64 of low, 8 times: 4 of seven        y[j] = d (a[s] + 1/2) / 2 g[j]
//   IQ3_S 21 256   110  d, 64 low, 8 of high, 32 signs, 4 of a   y[j] = d (2 a[s] + 1) g[j]
//   MXFP4 39  32    17  e, 16 of codes                           y[j] = 2^(e - 128) FP4[q[j]]
//   NVFP4 40  64    36  4 f, 32 of codes                         y[j] = f[s] / 2 FP4[q[j]]
//
// toynn/_kernels/quants describes where the bits of a code are: _blocks.pxd, _superblocks.pxd, _tables.pxd,
// _ternary.pxd, _ones.pxd, _grids.pxd. g are numbers of the codebooks (IQ1 and so on), which are constants of the
// library (codebooks.py). Their rows have 8 bytes (IQ3: 4). The codebook IQ1 holds 8 g + 8. Elements come in runs
// of RUN, which share a scale in every type. A run begins at a multiple of RUN. Rows of F32, F16 and BF16 may have
// any length; elements after a row's end are 0. Bytes are read one by one, since blocks may have any address. No
// product rounds: a float16 has 11 bits, a scale 7 and a code 6; a float32 has 24.
// Source: ggml-common.h and ggml-quants.c in ggml; the GGUF specification.
#include "codebooks.metal"

constant constexpr uint RUN = 16;

static inline uint word(device const uchar* raw) { return uint(raw[0]) | uint(raw[1]) << 8; }

// The float16 of these bits as float32; right for subnormal ones too, even if the device flushes them.
static inline float half_bits(uint h) {
    const uint a = h & 0x7FFF, sign = (h & 0x8000) << 16;
    const float small = as_type<float>(a + (126u << 23)) - 0.5f;
    const uint normal = (a << 13) + (112u << 23) + (a >= 0x7C00 ? 112u << 23 : 0u);
    return as_type<float>((a < 0x0400 ? as_type<uint>(small) : normal) | sign);
}

static inline float half_of(device const uchar* raw) { return half_bits(word(raw)); }

// a and b of sub-block s of Q4_K and Q5_K: 6 bits each, from 12 bytes.
static inline uint2 scales_k(device const uchar* raw, uint s) {
    if (s < 4) return uint2(raw[s] & 63, raw[s + 4] & 63);
    return uint2((raw[s + 4] & 15) | (raw[s - 4] >> 6) << 4, (raw[s + 4] >> 4) | (raw[s] >> 6) << 4);
}

// a[s] - 32 of sub-block s of Q3_K: 6 bits from 12 bytes.
static inline int scale_q3_k(device const uchar* raw, uint s) {
    const uint low = s < 8 ? raw[s] & 15 : raw[s - 8] >> 4;
    return int(low | (raw[8 + s % 4] >> s / 4 * 2 & 3) << 4) - 32;
}

// y = scale (q - offset) + least for RUN codes q. A code is some bits of a byte of low, and above them one or two
// bits of a byte of high.
static inline void codes(thread float* y, device const uchar* low, uint shift, uint mask, float scale, int offset,
                         float least) {
    for (uint i = 0; i < RUN; ++i) y[i] = scale * float(int(low[i] >> shift & mask) - offset) + least;
}

static inline void codes(thread float* y, device const uchar* low, uint shift, uint mask, device const uchar* high,
                         uint high_shift, uint high_mask, uint place, float scale, int offset, float least) {
    for (uint i = 0; i < RUN; ++i) {
        const uint q = (low[i] >> shift & mask) | (high[i] >> high_shift & high_mask) << place;
        y[i] = scale * float(int(q) - offset) + least;
    }
}

// Run r of a block of Q5_0 or Q5_1. Bit j of the four bytes of high is bit 4 of code j.
static inline void codes_5(thread float* y, device const uchar* high, uint r, float scale, int offset, float least) {
    const uint bits = word(high + 2 * r);
    for (uint i = 0; i < RUN; ++i) {
        const uint q = (high[4 + i] >> 4 * r & 15) | (bits >> i & 1) << 4;
        y[i] = scale * float(int(q) - offset) + least;
    }
}

constant constexpr int IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constant constexpr int FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// RUN codes of 4 bits, which are indices of a table.
static inline void looked_up(thread float* y, constant const int* table, device const uchar* low, uint shift,
                             float scale) {
    for (uint i = 0; i < RUN; ++i) y[i] = scale * float(table[low[i] >> shift & 15]);
}

// Half of an E4M3 float: 4 bits of exponent with bias 7, 3 bits of mantissa. NaN becomes 0.
static inline float small_float(uint x) {
    const uint exponent = x >> 3 & 15;
    if (x == 0x7F) return 0.0f;
    if (exponent == 0) return float(x & 7) * 0.0009765625f;
    return as_type<float>((exponent + 119) << 23 | (x & 7) << 20);
}

// Digit n (from 0) of x / 256 to the base of 3.
static inline int digit(uint x, uint n) {
    for (uint i = 0; i < n; ++i) x = 3 * x & 255;
    return int(3 * x >> 8);
}

// Eight numbers of a codebook, four from each pointer; negative if their sign bit is set.
static inline void signed_eight(thread float* y, constant const uchar* first, constant const uchar* second, uint signs,
                                float scale) {
    for (uint i = 0; i < 4; ++i) {
        y[i] = scale * (signs >> i & 1 ? -float(first[i]) : float(first[i]));
        y[4 + i] = scale * (signs >> (4 + i) & 1 ? -float(second[i]) : float(second[i]));
    }
}

// Eight signs from seven bits: the eighth makes the number of minus signs even.
static inline uint even_signs(uint seven) {
    uint odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

// Eight numbers of a row of IQ1, plus or minus 1/8.
static inline void eighths(thread float* y, uint row, uint minus, float scale) {
    for (uint i = 0; i < 8; ++i) y[i] = scale * float(int(IQ1[8 * row + i]) + (minus ? 0 : 2) - 9);
}

// Elements j .. j + RUN - 1 of row `row` of a matrix w (., K), j a multiple of RUN.
static inline void dequantize(thread float* y, device const uchar* w, uint type, uint row, uint K, uint j) {
    const ulong first = ulong(row) * K;  // the offset in bytes may be over 2^32
    const uint r = j / RUN;
    switch (type) {
    case 0: {
        device const float* values = (device const float*)w + first;
        for (uint i = 0; i < RUN; ++i) y[i] = j + i < K ? values[j + i] : 0.0f;
        break;
    }
    case 1: {
        for (uint i = 0; i < RUN; ++i) y[i] = j + i < K ? half_of(w + 2 * (first + j + i)) : 0.0f;
        break;
    }
    case 30: {
        for (uint i = 0; i < RUN; ++i) {
            y[i] = j + i < K ? as_type<float>(word(w + 2 * (first + j + i)) << 16) : 0.0f;
        }
        break;
    }
    case 8: {
        device const uchar* block = w + (first / 32 + r / 2) * 34;
        const float d = half_of(block);
        for (uint i = 0; i < RUN; ++i) y[i] = d * float(int(block[2 + r % 2 * RUN + i] ^ 128) - 128);
        break;
    }
    case 2: {
        device const uchar* block = w + (first / 32 + r / 2) * 18;
        codes(y, block + 2, r % 2 * 4, 15, half_of(block), 8, 0.0f);
        break;
    }
    case 3: {
        device const uchar* block = w + (first / 32 + r / 2) * 20;
        codes(y, block + 4, r % 2 * 4, 15, half_of(block), 0, half_of(block + 2));
        break;
    }
    case 6: {
        device const uchar* block = w + (first / 32 + r / 2) * 22;
        codes_5(y, block + 2, r % 2, half_of(block), 16, 0.0f);
        break;
    }
    case 7: {
        device const uchar* block = w + (first / 32 + r / 2) * 24;
        codes_5(y, block + 4, r % 2, half_of(block), 0, half_of(block + 2));
        break;
    }
    case 10: {
        device const uchar* block = w + (first / 256 + r / 16) * 84;
        const uint s = r % 16, scales = block[s];
        device const uchar* pairs = block + 16 + s / 8 * 32 + s % 2 * RUN;
        const float least = -half_of(block + 82) * float(scales >> 4);
        codes(y, pairs, s / 2 % 4 * 2, 3, half_of(block + 80) * float(scales & 15), 0, least);
        break;
    }
    case 11: {
        device const uchar* block = w + (first / 256 + r / 16) * 110;
        const uint s = r % 16;
        device const uchar* pairs = block + 32 + s / 8 * 32 + s % 2 * RUN;
        const float scale = half_of(block + 108) * float(scale_q3_k(block + 96, s));
        codes(y, pairs, s / 2 % 4 * 2, 3, block + s % 2 * RUN, s / 2, 1, 2, scale, 4, 0.0f);
        break;
    }
    case 12: {
        device const uchar* block = w + (first / 256 + r / 16) * 144;
        const uint s = r % 16 / 2;
        const uint2 scales = scales_k(block + 4, s);
        device const uchar* low = block + 16 + s / 2 * 32 + r % 2 * RUN;
        const float least = -half_of(block + 2) * float(scales.y);
        codes(y, low, s % 2 * 4, 15, half_of(block) * float(scales.x), 0, least);
        break;
    }
    case 13: {
        device const uchar* block = w + (first / 256 + r / 16) * 176;
        const uint s = r % 16 / 2;
        const uint2 scales = scales_k(block + 4, s);
        device const uchar* low = block + 48 + s / 2 * 32 + r % 2 * RUN;
        device const uchar* high = block + 16 + r % 2 * RUN;
        const float least = -half_of(block + 2) * float(scales.y);
        codes(y, low, s % 2 * 4, 15, high, s, 1, 4, half_of(block) * float(scales.x), 0, least);
        break;
    }
    case 14: {
        device const uchar* block = w + (first / 256 + r / 16) * 210;
        const uint s = r % 16, run = s / 2 % 4;  // of 32 elements, in a half block
        device const uchar* low = block + s / 8 * 64 + run % 2 * 32 + s % 2 * RUN;
        device const uchar* high = block + 128 + s / 8 * 32 + s % 2 * RUN;
        const float scale = half_of(block + 208) * float(int(block[192 + s] ^ 128) - 128);
        codes(y, low, run / 2 * 4, 15, high, run * 2, 3, 4, scale, 32, 0.0f);
        break;
    }
    case 20: {
        device const uchar* block = w + (first / 32 + r / 2) * 18;
        looked_up(y, IQ4, block + 2, r % 2 * 4, half_of(block));
        break;
    }
    case 23: {
        device const uchar* block = w + (first / 256 + r / 16) * 136;
        const uint s = r % 16 / 2;
        const uint a = (block[4 + s / 2] >> s % 2 * 4 & 15) | (word(block + 2) >> 2 * s & 3) << 4;
        looked_up(y, IQ4, block + 8 + s * 16, r % 2 * 4, half_of(block) * float(int(a) - 32));
        break;
    }
    case 34: {
        device const uchar* block = w + (first / 256 + r / 16) * 54;
        const uint at = j % 256;
        const float d = half_of(block + 52);
        for (uint i = 0; i < RUN; ++i) {
            uint from = at % 32 + i, n = at / 32;
            if (at >= 160) from = 32 + i, n = (at - 160) / 16;
            if (at >= 240) from = 48 + i % 4, n = i / 4;
            y[i] = d * float(digit(block[from], n) - 1);
        }
        break;
    }
    case 35: {
        device const uchar* block = w + (first / 256 + r / 16) * 66;
        const uint s = r % 16;
        codes(y, block + s / 8 * 32 + s % 2 * RUN, s / 2 % 4 * 2, 3, half_of(block + 64), 1, 0.0f);
        break;
    }
    case 16: {
        device const uchar* low = w + (first / 256 + r / 16) * 66 + 2 + r % 16 / 2 * 8;
        const uint signs = word(low + 4) | word(low + 6) << 16;
        const float scale = half_of(low - 2 - r % 16 / 2 * 8) * (0.5f + float(signs >> 28)) * 0.25f;
        for (uint k = 0; k < 2; ++k) {
            const uint at = r % 2 * 2 + k;
            constant const uchar* row = IQ2_XXS + 8 * uint(low[at]);
            signed_eight(y + 8 * k, row, row + 4, even_signs(signs >> 7 * at & 127), scale);
        }
        break;
    }
    case 17: {
        device const uchar* block = w + (first / 256 + r / 16) * 74;
        const uint s = r % 16 / 2, a = block[66 + s] >> r % 2 * 4 & 15;
        const float scale = half_of(block) * (0.5f + float(a)) * 0.25f;
        for (uint k = 0; k < 2; ++k) {
            const uint code = word(block + 2 + 8 * s + 2 * (r % 2 * 2 + k));
            constant const uchar* row = IQ2_XS + 8 * (code & 511);
            signed_eight(y + 8 * k, row, row + 4, even_signs(code >> 9), scale);
        }
        break;
    }
    case 22: {
        device const uchar* block = w + (first / 256 + r / 16) * 82;
        const uint s = r % 16 / 2, a = block[74 + s] >> r % 2 * 4 & 15;
        const float scale = half_of(block) * (0.5f + float(a)) * 0.25f;
        for (uint k = 0; k < 2; ++k) {
            const uint at = r % 2 * 2 + k, high = block[66 + s] >> 2 * at & 3;
            constant const uchar* row = IQ2_S + 8 * (uint(block[2 + 4 * s + at]) | high << 8);
            signed_eight(y + 8 * k, row, row + 4, block[34 + 4 * s + at], scale);
        }
        break;
    }
    case 18: {
        device const uchar* block = w + (first / 256 + r / 16) * 98;
        const uint s = r % 16 / 2, signs = word(block + 66 + 4 * s) | word(block + 68 + 4 * s) << 16;
        const float scale = half_of(block) * (0.5f + float(signs >> 28)) * 0.5f;
        for (uint k = 0; k < 2; ++k) {
            const uint at = r % 2 * 2 + k;
            device const uchar* low = block + 2 + 8 * s + 2 * at;
            signed_eight(y + 8 * k, IQ3_XXS + 4 * uint(low[0]), IQ3_XXS + 4 * uint(low[1]),
                         even_signs(signs >> 7 * at & 127), scale);
        }
        break;
    }
    case 21: {
        device const uchar* block = w + (first / 256 + r / 16) * 110;
        const uint s = r % 16 / 2, a = block[106 + s / 2] >> s % 2 * 4 & 15, high = block[66 + s];
        const float scale = half_of(block) * float(2 * a + 1);
        for (uint k = 0; k < 2; ++k) {
            const uint at = r % 2 * 2 + k;
            device const uchar* low = block + 2 + 8 * s + 2 * at;
            const uint one = uint(low[0]) | (high >> 2 * at & 1) << 8;
            const uint two = uint(low[1]) | (high >> (2 * at + 1) & 1) << 8;
            signed_eight(y + 8 * k, IQ3_S + 4 * one, IQ3_S + 4 * two, block[74 + 4 * s + at], scale);
        }
        break;
    }
    case 19: {
        device const uchar* block = w + (first / 256 + r / 16) * 50;
        const uint s = r % 16 / 2, high = word(block + 34 + 2 * s);
        const float scale = half_of(block) * float(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (uint k = 0; k < 2; ++k) {
            const uint at = r % 2 * 2 + k;
            eighths(y + 8 * k, uint(block[2 + 4 * s + at]) | (high >> 3 * at & 7) << 8, high >> 15, scale);
        }
        break;
    }
    case 29: {
        device const uchar* block = w + (first / 256 + r / 16) * 56;
        const uint s = r % 16 / 2, a = word(block + 48 + s / 2 * 2) >> (6 * (s % 2) + 3 * (r % 2)) & 7;
        const uint d = uint(block[49]) >> 4 | (block[51] & 0xF0) | (block[53] & 0xF0) << 4 | (block[55] & 0xF0) << 8;
        const float scale = half_bits(d) * float(2 * a + 1) * 0.125f;
        const uint high = block[32 + 2 * s + r % 2];
        for (uint k = 0; k < 2; ++k) {
            const uint own = high >> 4 * k;
            eighths(y + 8 * k, uint(block[4 * s + r % 2 * 2 + k]) | (own & 7) << 8, own >> 3 & 1, scale);
        }
        break;
    }
    case 39: {
        device const uchar* block = w + (first / 32 + r / 2) * 17;
        const uint e = block[0];  // for e < 2 the power is subnormal: a half or a quarter of the smallest normal
        const float scale = as_type<float>(max(e, 2u) - 1 << 23) * (e == 0 ? 0.25f : (e == 1 ? 0.5f : 1.0f));
        looked_up(y, FP4, block + 1, r % 2 * 4, scale);
        break;
    }
    case 40: {
        device const uchar* block = w + (first / 64 + r / 4) * 36;
        const float scale = small_float(block[r % 4]);
        for (uint i = 0; i < RUN; ++i) {
            y[i] = scale * float(FP4[block[4 + r % 4 * 8 + i % 8] >> i / 8 * 4 & 15]);
        }
        break;
    }
    default: {
        for (uint i = 0; i < RUN; ++i) y[i] = NAN;  // never: the backend refuses other types
    }
    }
}
