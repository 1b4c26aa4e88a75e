/* Dot products of rows of x with rows of quantized weights. The codes of the weights are multiplied
   in 8 bits, without dequantizing.

   x is rounded by blocks of 32: x[j] = s q[j], q from -127 to 127, s = max |x| / 127. Let w = d c - m
   for 32 codes c with their d and m. Then

       sum_j x[j] w[j] = s d sum_j q[j] c[j] - m s sum_j q[j]

   Both sums on the right are exact: they add integers. Rounding changes each x by at most s / 2. A
   block of x with NaN or infinity gives NaN. A rounded row of n terms, n a multiple of 32, is an
   array of floats:

       | q[0] .. q[n-1]    | s[0] .. s[n/32-1]  0 ..  | s[b] times the sum of block b's q  0 ..  | .. |
         n int8: n/4 floats  tn_scales(n) floats        tn_scales(n) floats

   Zeros pad the scales and the sums to whole groups of 8 blocks. On x86-64 tn_scales(n) integers
   follow: minus the sum of each block's q.

   On x86-64, up to 8 blocks of 32 codes are taken at a time. Their factors d fill a register, and
   one or two instructions multiply each block. dot_int8.c includes dot_int8_rows.h twice: with
   vpdpbusd, for CPUs that have it, and with AVX2. Products by row have an order of their own where
   a CPU has AVX512_VNNI (dot_int8_many.h). On arm64, four rows of w are taken at a time.
   dot_neon.c includes dot_neon_rows.h three times: with smmla, with sdot, and with what all CPUs
   have. All variants of an architecture add the same integers, and floats in the same order, so
   that all of its CPUs give the same bits. Only these functions are compiled for instructions that
   not all CPUs of a level have; the rest of the module is not. Their caller has checked the CPU
   (cpu.pyx). */
#ifndef TOYNN_DOT_INT8_H
#define TOYNN_DOT_INT8_H

#include <stddef.h>
#include <stdint.h>
#include "gemm.h"

/* y[m * y_row + i] for N rows of w by M rows of x, of n terms. */
typedef void (*tn_dot_fn)(float* y, ptrdiff_t y_row, const uint8_t* w, ptrdiff_t w_row, ptrdiff_t N,
                          const float* x, ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n);

/* Whether this build multiplies in 8 bits: 1 on x86-64, 2 on arm64. */
#if defined(__AVX2__) && TN_GNU
#define TN_INT8 1
#elif defined(TN_NEON)
#define TN_INT8 2
#else
#define TN_INT8 0
#endif

/* Instructions of this build that not all CPUs of the level have: vpdpbusd (since GCC 11 and clang
   12); sdot and smmla. */
#define TN_AVX_VNNI 1
#define TN_AVX512_VNNI 2
#define TN_SMMLA 3
#if TN_INT8 == 1 && defined(__AVX512VL__)
#define TN_UNITS TN_AVX512_VNNI
#elif TN_INT8 == 1 && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define TN_UNITS TN_AVX_VNNI
#elif TN_INT8 == 2 && TN_ARM_UNITS
#define TN_UNITS TN_SMMLA
#else
#define TN_UNITS 0
#endif

enum {
    TN_RUN = 32, /* terms of a block of x */
    TN_RUNS = 8  /* blocks that are taken at a time: the lanes of a register of factors */
};

/* Scales of a row of n terms: one for each block, then zeros. */
static inline ptrdiff_t tn_scales(ptrdiff_t n) {
    return (n / TN_RUN + TN_RUNS - 1) / TN_RUNS * TN_RUNS;
}

/* Floats of a rounded row. */
static inline ptrdiff_t tn_int8_floats(ptrdiff_t n) { return n / 4 + 3 * tn_scales(n); }

/* A block of each type, as in _blocks.pxd and _superblocks.pxd, and the types' GGUF numbers. */
typedef struct { uint8_t d[2], low[16]; } tn_q4_0;                              /* w = d c - 8 d */
typedef struct { uint8_t d[2], codes[32]; } tn_q8_0;                            /* w = d c, c signed */
typedef struct { uint8_t d[2], m[2], scales[12], low[128]; } tn_q4_k;           /* w = d a c - m b */
typedef struct { uint8_t low[128], high[64], a[16], d[2]; } tn_q6_k;            /* w = d a (c - 32) */
enum { TN_Q4_0 = 2, TN_Q8_0 = 8, TN_Q4_K = 12, TN_Q6_K = 14 };

static inline ptrdiff_t tn_bytes_of_256(int type) {
    switch (type) {
    case TN_Q4_0: return TN_RUNS * sizeof(tn_q4_0);
    case TN_Q8_0: return TN_RUNS * sizeof(tn_q8_0);
    case TN_Q4_K: return sizeof(tn_q4_k);
    case TN_Q6_K: return sizeof(tn_q6_k);
    }
    return 0;
}

/* Round M contiguous rows of x, of n terms (whole blocks); rounded rows begin x_row apart. `unit` is
   the unit of the function that will multiply them: 0 what all CPUs of the level have, 1 vpdpbusd
   or sdot, 2 smmla. */
TN_LINKED void tn_round_to_int8(float* rounded, ptrdiff_t x_row, const float* x, ptrdiff_t M,
                                ptrdiff_t n, int unit);

/* Added to a unit: for many rows of x, if there is a faster way (dot_int8_many.h). It serves any
   number of rows, with the same bits for a row whatever the others are. */
#define TN_BY_ROW 4

/* The function that multiplies a type (a GGUF number) with a unit; NULL if not one of the four. */
TN_LINKED tn_dot_fn tn_dot_int8_of(int type, int unit);

/* The same for M rows of x as they are, in float32 (gemv_codes.c); NULL: dequantize w before. */
TN_LINKED tn_dot_fn tn_dot_codes_of(int type, ptrdiff_t M);

#endif
