/* What rungs share: exp as a polynomial, without a branch, so that loops become vector code. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef ptrdiff_t size;

/* e^x = 2^n e^r with x = n ln 2 + r: adding 1.5 * 2^23 rounds x / ln 2 to the whole number n. */
static inline float power(float x) {
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float rounded = x * 1.44269504f + 12582912.0f, n = rounded - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 1 + r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * (1 / 24.f + r * (1 / 120.f)))));
    union { float f; int i; } bits = {rounded}, two = {.i = (bits.i - 0x4B400000 + 127) << 23};
    return y * two.f;
}
