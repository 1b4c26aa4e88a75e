/* Flush denormals to zero on the calling thread, and put its floating-point state back.

   A multiply-add of subnormal numbers is about fifty times slower than one of normal numbers. Each
   thread has its own control register, so each thread of a parallel region calls these. */
#ifndef TOYNN_FPSTATE_H
#define TOYNN_FPSTATE_H

#include "compiler.h"

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>
typedef unsigned int tn_fpstate;
static inline tn_fpstate tn_flush_denormals(void) {
    tn_fpstate before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); /* FTZ: results, DAZ: operands */
    return before;
}
static inline void tn_restore_fpstate(tn_fpstate before) { _mm_setcsr(before); }

#elif defined(__aarch64__) && TN_GNU
#include <stdint.h>
typedef uint64_t tn_fpstate;
static inline tn_fpstate tn_flush_denormals(void) {
    tn_fpstate before;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(before | (1u << 24)));
    return before;
}
static inline void tn_restore_fpstate(tn_fpstate before) {
    __asm__ __volatile__("msr fpcr, %0" : : "r"(before));
}

#else
typedef int tn_fpstate;
static inline tn_fpstate tn_flush_denormals(void) { return 0; }
static inline void tn_restore_fpstate(tn_fpstate before) { (void)before; }
#endif

#endif
