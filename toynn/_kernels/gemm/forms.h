/* The forms of packed panels: what packs each side of a product, and what multiplies them. A form is one
   constant, at the end of the file that has its functions. _product.pxd says what its fields mean. */
#ifndef TOYNN_FORMS_H
#define TOYNN_FORMS_H

#include "dot_int8.h"
#include "tiles.h"

/* Terms of a pass: a packed panel of A and one of B fit in 48 KB of L1. */
#define TN_KC 256

typedef struct {
    const float* x;
    ptrdiff_t n, stride, k_stride, kc, row, k;
} tn_piece;

typedef struct {
    int width, step, head, spare, even;
    void (*pack)(float* y, const tn_piece* piece);
} tn_side;

typedef struct {
    int number, terms, pass_terms, group, by_rows;
    tn_side a, b;
    void (*multiply)(int h, ptrdiff_t steps, const float* a, const float* b, float* c,
                     ptrdiff_t ldc, int add);
    void (*round)(float* y, const float* x, ptrdiff_t ld, ptrdiff_t rows, ptrdiff_t columns,
                  int across);
    void (*multiply_rounded)(int h, ptrdiff_t steps, const float* a, ptrdiff_t a_row, ptrdiff_t a_k,
                             const float* b, float* c, ptrdiff_t ldc, int add);
    int (*fits)(ptrdiff_t steps, const float* a, const float* b);
    void (*begin)(void);
    void (*end)(void);
} tn_form;

/* Floats of a packed group of panels that stays in L2: 384 KB, and 1.25 MB of 2 MB with AMX. */
#define TN_GROUP (3 << 15)
#define TN_GROUP_TILES (5 << 16)

/* Which forms a build has. Their functions are compiled for instructions that not all CPUs of a level
   have; the rest of the module is not. Who chooses a form has checked that the CPU has the unit. */
#if defined(__AVX512F__) && defined(TN_SHUFFLES)
#define TN_PAIRS 1
#define TN_BF16 __attribute__((target("avx512bf16")))
#elif defined(TN_NEON) && TN_ARM_UNITS
#define TN_PAIRS 2
#define TN_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#else
#define TN_PAIRS 0
#endif

#if TN_PAIRS && TN_HAS_TILES
#define TN_TILES 1
#else
#define TN_TILES 0
#endif

#define TN_SIDE 32 /* rows, columns and terms of a step of tiles */

/* Units that multiply codes of 8 bits, as bits: 1 << unit. The tiles of AMX are unit 2 on x86-64. */
#if TN_TILES
#define TN_CODE_UNITS 4
#elif TN_INT8 == 1 && defined(TN_SHUFFLES)
#define TN_CODE_UNITS (TN_UNITS ? 3 : 1)
#elif TN_INT8 == 2 && TN_UNITS && defined(TN_SHUFFLES)
#define TN_CODE_UNITS 6
#else
#define TN_CODE_UNITS 0
#endif

/* gemm.c, gemm_bf16.c or gemm_neon.c, gemm_amx.c (by parts - 1, and for codes by chance or not),
   gemm_int8.c (by unit, and by chance or not) */
TN_LINKED extern const tn_form tn_form_floats, tn_form_pairs, tn_form_parts[3],
    tn_form_codes_amx[2], tn_form_codes[3][2];
#define TN_NO_FORM ((const tn_form*)0)
#define TN_FORM_PAIRS (TN_PAIRS ? &tn_form_pairs : TN_NO_FORM)
#define TN_FORM_PARTS(parts) (TN_TILES ? &tn_form_parts[(parts) - 1] : TN_NO_FORM)
#define TN_FORM_SQUARES (TN_TILES ? &tn_form_parts[0] : &tn_form_floats)

static inline const tn_form* tn_codes_of(int unit, int by_chance) {
#if TN_CODE_UNITS
    if (TN_CODE_UNITS >> unit & 1)
        return TN_TILES ? &tn_form_codes_amx[by_chance] : &tn_form_codes[unit][by_chance];
#endif
    return TN_NO_FORM;
}

/* The form with a number; NULL if this build has none. */
static inline const tn_form* tn_form_of(ptrdiff_t number) {
    if (number < 0 || number > 7) return TN_NO_FORM;
    if (number >= 5) return tn_codes_of((int)number - 5, 0);
    return number == 0 ? &tn_form_floats : number == 1 ? TN_FORM_PAIRS : TN_FORM_PARTS(number - 1);
}

#endif
