/* The register tile of a matrix product of floats, and what all tiles share: registers, the first and
   the last lines of a tile, and the transposition that packing needs.

   C[h, NR] (+)= A[h, kc] B[kc, NR]: h * 2 vectors of sums stay in registers while k runs. Each step
   loads two vectors of B and broadcasts h numbers of A. Half a tile is one vector wide. It serves
   if B has no more columns than that: at an edge, in a narrow head, in an adapter of low rank.
   Strides of A and B are free, so one body serves operands in place and packed ones, whose strides
   are constants. The body is instantiated for each height h and both widths w (in vectors). The
   compiler keeps the sums in registers only if it knows the length of the loops.
   Written with the vector extensions of GCC and clang; other compilers get the same in plain C.
   gemm.c has the bodies: each level compiles them once, for all its modules (setup.py). */
#ifndef TOYNN_GEMM_H
#define TOYNN_GEMM_H

#include <stddef.h>

#include "compiler.h"

/* TN_V floats per register; TN_MR rows of a tile, as many as the registers hold. */
#if defined(__AVX512F__)
#define TN_V 16
#define TN_MR 14
#elif defined(__AVX__)
#define TN_V 8
#define TN_MR 6
#elif defined(TN_NEON) /* arm64: the level neon */
#define TN_V 4
#define TN_MR 12
#else
#define TN_V 4
#define TN_MR 4
#endif
#define TN_NR (2 * TN_V)

/* Whether the compiler knows bfmmla, smmla and sdot, which not all arm64 CPUs have. */
#if defined(__aarch64__) && (defined(__clang__) ? __clang_major__ >= 16 : __GNUC__ >= 10)
#define TN_ARM_UNITS 1
#else
#define TN_ARM_UNITS 0
#endif

#if TN_GNU
#define TN_INLINE static inline __attribute__((always_inline))
#define TN_PREFETCH(address) __builtin_prefetch(address, 1)
#define TN_UNROLL _Pragma("GCC unroll 16")
/* Loads after this stay after it: GCC 12 would load so many numbers at once that it spills some. */
#define TN_IN_ORDER __asm__ volatile("" ::: "memory")

typedef float tn_vec __attribute__((vector_size(4 * TN_V)));
/* The same, at any address in an array of floats. */
typedef float tn_vec_u __attribute__((vector_size(4 * TN_V), aligned(4), may_alias));

TN_INLINE tn_vec tn_load(const float* x) { return *(const tn_vec_u*)x; }
TN_INLINE void tn_store(float* x, tn_vec v) { *(tn_vec_u*)x = v; }
TN_INLINE tn_vec tn_same(float x) { return x - (tn_vec){0}; }

/* How a tile begins: C, of h rows of w registers, will be needed soon. */
TN_INLINE void tn_expect(int h, int w, const float* c, ptrdiff_t ldc) {
    TN_UNROLL for (int i = 0; i < h; i++)
        TN_UNROLL for (int v = 0; v < w; v++) TN_PREFETCH(c + i * ldc + v * TN_V);
}

/* How a tile of floats ends: h rows of w registers of sums overwrite C, or are added to it. */
TN_INLINE void tn_finish(int h, int w, tn_vec sum[][2], float* c, ptrdiff_t ldc, int add) {
    TN_UNROLL for (int i = 0; i < h; i++) {
        TN_UNROLL for (int v = 0; v < w; v++) {
            float* at = c + i * ldc + v * TN_V;
            tn_store(at, add ? tn_load(at) + sum[i][v] : sum[i][v]);
        }
    }
}

#else
#define TN_INLINE static inline
#endif

/* A function of a .c file that is linked into each module that calls it, and hidden from others. */
#if TN_GNU && !defined(_WIN32)
#define TN_LINKED __attribute__((visibility("hidden")))
#else
#define TN_LINKED
#endif

/* body(h, ...) with h known to the compiler. */
#define TN_HEIGHT(H, body, ...) case H: if (H <= TN_MR) body(H, __VA_ARGS__); break;
#define TN_ALL_HEIGHTS(...) \
    switch (h) { \
        TN_HEIGHT(1, __VA_ARGS__) TN_HEIGHT(2, __VA_ARGS__) TN_HEIGHT(3, __VA_ARGS__) \
        TN_HEIGHT(4, __VA_ARGS__) TN_HEIGHT(5, __VA_ARGS__) TN_HEIGHT(6, __VA_ARGS__) \
        TN_HEIGHT(7, __VA_ARGS__) TN_HEIGHT(8, __VA_ARGS__) TN_HEIGHT(9, __VA_ARGS__) \
        TN_HEIGHT(10, __VA_ARGS__) TN_HEIGHT(11, __VA_ARGS__) TN_HEIGHT(12, __VA_ARGS__) \
        TN_HEIGHT(13, __VA_ARGS__) TN_HEIGHT(14, __VA_ARGS__) \
    }

/* Operands in place: h rows of A and `width` contiguous columns of B (TN_NR or TN_V). C is in cache. */
TN_LINKED void tn_tile(int h, int width, ptrdiff_t kc, const float* a, ptrdiff_t a_row,
                       ptrdiff_t a_k, const float* b, ptrdiff_t b_k, float* c, ptrdiff_t ldc,
                       int add);

#if TN_GNU && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TN_SHUFFLES
#endif
#endif

#ifdef TN_SHUFFLES
#if TN_V == 8
/* Exchange row and lane of V registers: first within halves of registers, by two rounds of
   interleaving (one instruction each), then exchange whole halves. */
TN_INLINE void tn_exchange(tn_vec r[TN_V]) {
    tn_vec s[TN_V];
    TN_UNROLL for (int i = 0; i < 8; i += 2) {
        s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    TN_UNROLL for (int i = 0; i < 8; i++) {
        const tn_vec x = s[i / 4 * 4 + i / 2 % 2], y = s[i / 4 * 4 + i / 2 % 2 + 2];
        r[i] = i % 2 ? __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
                     : __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
    }
    TN_UNROLL for (int i = 0; i < 4; i++) {
        s[i] = __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        s[i + 4] = __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    TN_UNROLL for (int i = 0; i < 8; i++) r[i] = s[i];
}
#elif TN_V == 16
/* Four lanes of a quarter of a register, and the same of the others; two quarters of each of (x, y). */
#define TN_LANES(a, b, c, d) a, b, c, d, a + 4, b + 4, c + 4, d + 4, \
    a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12
#define TN_EVEN 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define TN_ODD 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31

/* Exchange row and lane of V registers: within quarters of registers, by two rounds of interleaving,
   then exchange whole quarters, by two more. Lanes that cross quarters would take twice as long. */
TN_INLINE void tn_exchange(tn_vec r[TN_V]) {
    tn_vec s[TN_V];
    TN_UNROLL for (int i = 0; i < 16; i += 2) {
        s[i] = __builtin_shufflevector(r[i], r[i + 1], TN_LANES(0, 16, 1, 17));
        s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], TN_LANES(2, 18, 3, 19));
    }
    TN_UNROLL for (int i = 0; i < 16; i++) {
        const tn_vec x = s[i / 4 * 4 + i / 2 % 2], y = s[i / 4 * 4 + i / 2 % 2 + 2];
        r[i] = i % 2 ? __builtin_shufflevector(x, y, TN_LANES(2, 3, 18, 19))
                     : __builtin_shufflevector(x, y, TN_LANES(0, 1, 16, 17));
    }
    TN_UNROLL for (int i = 0; i < 16; i++) {
        const tn_vec x = r[i / 8 * 8 + i % 4], y = r[i / 8 * 8 + i % 4 + 4];
        s[i] = i & 4 ? __builtin_shufflevector(x, y, TN_ODD)
                     : __builtin_shufflevector(x, y, TN_EVEN);
    }
    TN_UNROLL for (int i = 0; i < 16; i++) {
        const tn_vec x = s[i % 8], y = s[i % 8 + 8];
        r[i] = i & 8 ? __builtin_shufflevector(x, y, TN_ODD)
                     : __builtin_shufflevector(x, y, TN_EVEN);
    }
}
#else
/* The lanes of (x, y) that make x0 y0 x1 y1 ..: of the lower halves, and of the upper halves. */
#define TN_LOWER 0, 4, 1, 5
#define TN_UPPER 2, 6, 3, 7

/* Exchange row and lane of V registers. Interleaving row i with row i + V/2 rotates the bits of
   (row, lane) by one place: log2(V) rounds do it. */
TN_INLINE void tn_exchange(tn_vec r[TN_V]) {
    tn_vec s[TN_V];
    TN_UNROLL for (int round = 1; round < TN_V; round *= 2) {
        TN_UNROLL for (int i = 0; i < TN_V / 2; i++) {
            s[2 * i] = __builtin_shufflevector(r[i], r[i + TN_V / 2], TN_LOWER);
            s[2 * i + 1] = __builtin_shufflevector(r[i], r[i + TN_V / 2], TN_UPPER);
        }
        TN_UNROLL for (int i = 0; i < TN_V; i++) r[i] = s[i];
    }
}
#endif

/* y[k * y_k + i] = x[i * x_row + k] for TN_V values of k and of i. x has only `rows` rows; further
   rows count as 0. */
static inline void tn_transpose(float* y, ptrdiff_t y_k, const float* x, ptrdiff_t x_row,
                                ptrdiff_t rows) {
    tn_vec r[TN_V];
    if (rows >= TN_V) {
        TN_UNROLL for (int i = 0; i < TN_V; i++) r[i] = tn_load(x + i * x_row);
    } else {
        TN_UNROLL for (int i = 0; i < TN_V; i++)
            r[i] = i < rows ? tn_load(x + i * x_row) : (tn_vec){0};
    }
    tn_exchange(r);
    TN_UNROLL for (int i = 0; i < TN_V; i++) tn_store(y + i * y_k, r[i]);
}
#else
static inline void tn_transpose(float* y, ptrdiff_t y_k, const float* x, ptrdiff_t x_row,
                                ptrdiff_t rows) {
    for (int k = 0; k < TN_V; k++)
        for (int i = 0; i < TN_V; i++) y[k * y_k + i] = i < rows ? x[i * x_row + k] : 0;
}
#endif

#endif
