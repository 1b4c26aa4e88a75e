// Dropout: some elements become zero, the others grow, so that the mean stays the same.
//
//   y[i]  = x[i] m[i] / (1 - p)           m[i] = [h[i] >= p 2^32]
//   dx[i] = dy[i] m[i] / (1 - p)          the same kernel, with dy for x
//
//   h[i]  = 32 bits of splitmix64(key + 16 (i // 32) + i % 16): the low ones where i % 32 < 16,
//           else the high ones
//   key   = splitmix64 over seed, step, site
//
// The masks are the CPU's, bit for bit. control: (step, active); if active is 0, y = x. One thread computes the
// two elements of one hash. In place: y may be x. NaN stays NaN, dropped or not.
// Source: Srivastava et al. 2014, Dropout, JMLR 15, section 10; Salmon et al. 2011, SC11; Steele, Lea & Flood
// 2014, Fast splittable pseudorandom number generators, section 5.

static inline ulong splitmix(ulong x) {
    x += 0x9E3779B97F4A7C15ul;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ul;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBul;
    return x ^ (x >> 31);
}

// 1 / (1 - p), rounded once: d + e = 1 - p exactly, and the quotient takes one Newton step.
static inline float inverse_kept(float p) {
    const float d = 1.0f - p, e = (1.0f - d) - p, q = 1.0f / d;
    return fma(q, fma(-q, d, 1.0f) - q * e, q);
}

kernel void dropout_forward(DROPOUT_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint first = at / 16 * 32 + at % 16, second = first + 16;
    const float p = control[1] ? args.p : 0.0f;
    const uint least = uint(p * 4294967296.0f);
    const float scale = inverse_kept(p);
    const ulong key = splitmix(splitmix(splitmix(args.seed) ^ ulong(uint(control[0]))) ^ ulong(args.site));
    const ulong h = splitmix(key + at);
    if (first < args.n) y[first] = x[first] * (uint(h) >= least ? scale : 0.0f);
    if (second < args.n) y[second] = x[second] * (uint(h >> 32) >= least ? scale : 0.0f);
}
