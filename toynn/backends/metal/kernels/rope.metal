// RoPE: rotate each pair of channels by an angle that grows with the position.
//
//   angle[n,i] = positions[n] inverse_frequency[i]        c = m cos(angle), s = m sin(angle)
//   m[n]       = magnitude (1 + growth ln(1 + floor(positions[n] / span)))
//   y[n,h,j]   = x[n,h,j] c - x[n,h,k] s                  dx[n,h,j] =  dy[n,h,j] c + dy[n,h,k] s
//   y[n,h,k]   = x[n,h,j] s + x[n,h,k] c                  dx[n,h,k] = -dy[n,h,j] s + dy[n,h,k] c
//
// Pair i of R/2 has the channels j, k = i, i + R/2 (half-split). If interleaved, it has j, k = 2i, 2i + 1. N rows,
// H heads. A thread takes pair i of a row: it rotates the pair in the first P heads. In the other heads, and for i
// from R/2 on, it copies channels 2i and 2i + 1.
// In place: y may be x, dx may be dy.
// Source: Su et al. 2021, arXiv:2104.09864, section 3.4.

// cos and sin of position x frequency within 2e-7, for positions below 2^24. Metal has no double, and in float32
// the product would be off by 5e-4 at position 8192. So the product is two floats, hi + lo, whose sum is exact.
// pi/2 is three floats, whose sum is right to 2^-75. Then angle = k pi/2 + r with |r| <= pi/4, and the Taylor
// series of r.
static inline float2 cos_sin(float position, float frequency) {
    const float hi = position * frequency;
    const float lo = fma(position, frequency, -hi);
    const float k = rint(hi * 0.63661977f);
    float r = fma(-k, 1.5707964f, hi);
    r = fma(-k, -4.371139e-08f, r);
    r = fma(-k, -1.7151245e-15f, r) + lo;
    const float t = r * r;
    float s = 1.0f / 362880.0f;
    s = s * t - 1.0f / 5040.0f;
    s = s * t + 1.0f / 120.0f;
    s = s * t - 1.0f / 6.0f;
    s = s * t * r + r;
    float c = -1.0f / 3628800.0f;
    c = c * t + 1.0f / 40320.0f;
    c = c * t - 1.0f / 720.0f;
    c = c * t + 1.0f / 24.0f;
    c = c * t - 0.5f;
    c = c * t + 1.0f;
    const int quarter = int(k);
    const float across = quarter & 1 ? s : c;
    const float up = quarter & 1 ? c : s;
    return float2((quarter + 1) & 2 ? -across : across, quarter & 2 ? -up : up);
}

// m at a position. The position is an integer, so an integer division is the floor.
static inline float magnitude_at(int position, float magnitude, float growth, uint span) {
    return growth == 0.0f ? magnitude : magnitude * (1.0f + growth * precise::log(1.0f + float(uint(position) / span)));
}

// Pair i of all heads of a row, D apart: rotate it by an angle's cosine and sine, or copy channels.
static inline void rotate_pair(device float* y, device const float* x, float2 by, uint i, uint H, uint D, uint R, uint
P,
                        bool interleaved) {
    const uint half_r = R / 2, j = interleaved ? 2 * i : i, k = interleaved ? j + 1 : j + half_r;
    for (uint h = 0; h < H; ++h) {
        if (h < P && i < half_r) {
            const float a = x[h * D + j], b = x[h * D + k];
            y[h * D + j] = a * by.x - b * by.y;
            y[h * D + k] = a * by.y + b * by.x;
        } else {
            for (uint c = 2 * i; c < min(2 * i + 2, D); ++c) y[h * D + c] = x[h * D + c];
        }
    }
}

kernel void rope_forward(ROPE_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint half_d = (args.D + 1) / 2;
    if (at >= args.N * half_d) return;
    const uint n = at / half_d, i = at % half_d, row = n * args.H * args.D;
    const float frequency = i < args.R / 2 ? inverse_frequency[i] : 0.0f;
    const float m = magnitude_at(positions[n], args.magnitude, args.growth, args.span);
    const float2 by = m * cos_sin(float(positions[n]), frequency);
    rotate_pair(y + row, x + row, by, i, args.H, args.D, args.R, args.P, args.interleaved);
}

kernel void rope_backward(ROPE_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint half_d = (args.D + 1) / 2;
    if (at >= args.N * half_d) return;
    const uint n = at / half_d, i = at % half_d, row = n * args.H * args.D;
    const float frequency = i < args.R / 2 ? inverse_frequency[i] : 0.0f;
    const float m = magnitude_at(positions[n], args.magnitude, args.growth, args.span);
    const float2 by = m * cos_sin(-float(positions[n]), frequency);
    rotate_pair(dx + row, dy + row, by, i, args.H, args.D, args.R, args.P, args.interleaved);
}
