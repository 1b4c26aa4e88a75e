// Rounding of float32 to the values of a 16-bit type: to nearest, ties to even.
//
//   float16:  y = x rounded to 11 significant bits; below 2^-14, to a multiple of 2^-24;
//             infinite from 65520 on
//   bfloat16: y = x rounded to 8 significant bits; subnormal numbers become 0
//   narrow    z = the upper 16 bits of x rounded to bfloat16
//   widen     y = the number with the upper bits z, and zeros below
//
// n elements, one thread each. y may be x. NaN stays NaN.
// Sources: IEEE 754-2019, sections 3.6 and 4.3.1; Bengio et al. 2013, arXiv:1308.3432.

// x rounded to a mantissa without its last bits, which are set in `dropped`.
static inline float without(float x, uint dropped) {
    uint u = as_type<uint>(x);
    u += (dropped >> 1) + ((u & (dropped + 1)) != 0 ? 1 : 0);
    return as_type<float>(u & ~dropped);
}

static inline float to_float16(float x) {
    const float infinity = x > 0.0f ? INFINITY : -INFINITY;
    float wide = without(x, 0x1FFF);
    wide = fabs(wide) >= 65536.0f ? infinity : wide;
    wide = fabs(x) < 6.103515625e-05f ? (x + 0.75f) - 0.75f : wide;  // the last bit of 0.75 is 2^-24
    return isnan(x) ? x : wide;
}

static inline float to_bfloat16(float x) {
    const float wide = fabs(x) < 1.17549435e-38f ? 0.0f : without(x, 0xFFFF);
    return isnan(x) ? x : wide;
}

kernel void rounding_forward(ROUNDING_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = args.brain ? to_bfloat16(x[i]) : to_float16(x[i]);
}

kernel void rounding_narrow(ROUNDING_NARROW, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const uint quiet = isnan(x[i]) ? 1u << 22 : 0u;  // a NaN needs a bit that is kept
    z[i] = ushort((as_type<uint>(to_bfloat16(x[i])) | quiet) >> 16);
}

kernel void rounding_widen(ROUNDING_WIDEN, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = as_type<float>(uint(z[i]) << 16);
}
