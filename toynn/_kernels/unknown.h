/* A number of which the compiler knows only that it is always the same.

   Of a bound that it knows it also knows what follows from it: GCC then computes x < low ? low : x
   in both cases to the end, and picks one of two results by masks, where one instruction takes the
   smaller of two registers. It still takes the call out of a loop. */
#ifndef TOYNN_UNKNOWN_H
#define TOYNN_UNKNOWN_H

#if defined(__GNUC__) && !defined(__clang__)
__attribute__((const, noipa)) static float tn_unknown(float x) { return x; }
#else
static inline float tn_unknown(float x) { return x; }
#endif

#endif
