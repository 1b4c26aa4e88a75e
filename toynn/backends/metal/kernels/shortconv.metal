// A short convolution, alone or between two gates.
//
//   u[t,c] = i[t,c] v[t,c]                              i, g, v: the thirds of row t of x (N,3C)
//   z[t,c] = b[c] + sum_k w[c,L-1-k] u[t-k,c]           k = 0 .. L-1, while t-k is in the sequence
//   y[t,c] = g[t,c] z[t,c]
//
//   dg = dy z        dz = dy g        du[t,c] = sum_k w[c,L-1-k] dz[t+k,c]      di = du v, dv = du i
//   dw[c,L-1-k] = sum_t dz[t,c] u[t-k,c]                db[c] = sum_t dz[t,c]
//
// b may be missing, for 0. Without gates u = x (N,C) and y = z; a row of x has P = 3 or 1 parts of C channels.
// A thread for each channel of a row; dw: a thread for each tap of a channel, over all rows. cached: a thread for
// each channel of a sequence, over its T rows. A ring of R rows holds the last rows of u. Formulas: shortconv.pyx.
// Source: Liquid AI 2025, arXiv:2511.23404, section 2.

// How many rows the convolution of a row sees, with the row itself.
static inline uint taps(device const int* first, bool has_first, uint row, uint T, uint L) {
    const uint start = has_first ? uint(first[row]) : row / T * T;
    return min(L, row - start + 1);
}

// u of a channel of a row; r points to its first part.
static inline float summed(device const float* r, uint C, uint P) {
    return P == 1 ? r[0] : r[0] * r[2 * C];
}

kernel void shortconv_forward(SHORTCONV_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, L = args.L, P = args.P;
    if (at >= args.B * args.T * C) return;
    const uint n = at / C, c = at % C, seen = taps(first, args.has_first, n, args.T, L);
    float z = args.has_b ? b[c] : 0.0f;
    for (uint k = 0; k < seen; ++k) {
        z += w[c * L + L - 1 - k] * summed(x + (n - k) * P * C + c, C, P);
    }
    y[at] = P == 1 ? z : z * x[n * P * C + C + c];
}

kernel void shortconv_backward_x(SHORTCONV_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, L = args.L, P = args.P, N = args.B * args.T;
    if (at >= N * C) return;
    const uint n = at / C, c = at % C, seen = taps(first, args.has_first, n, args.T, L);
    device const float* r = x + n * P * C + c;
    float z = args.has_b ? b[c] : 0.0f, du = 0.0f;
    for (uint k = 0; k < seen; ++k) z += w[c * L + L - 1 - k] * summed(r - k * P * C, C, P);
    for (uint k = 0; k < L && n + k < N; ++k) {
        if (taps(first, args.has_first, n + k, args.T, L) <= k) break;
        const float gate = P == 1 ? 1.0f : x[(n + k) * P * C + C + c];
        du += w[c * L + L - 1 - k] * (dy[(n + k) * C + c] * gate);
    }
    device float* d = dx + n * P * C + c;
    if (P == 1) {
        d[0] = du;
        return;
    }
    d[0] = du * r[2 * C];
    d[C] = z * dy[at];
    d[2 * C] = du * r[0];
}

kernel void shortconv_backward_w(SHORTCONV_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, L = args.L, P = args.P;
    if (at >= C * L) return;
    const uint c = at / L, k = L - 1 - at % L;
    float sum = args.accumulate ? dw[at] : 0.0f;
    for (uint n = 0; n < args.B * args.T; ++n) {
        if (taps(first, args.has_first, n, args.T, L) <= k) continue;
        device const float* r = x + n * P * C + c;
        sum += dy[n * C + c] * (P == 1 ? 1.0f : r[C]) * summed(r - k * P * C, C, P);
    }
    dw[at] = sum;
}

kernel void shortconv_backward_b(SHORTCONV_BACKWARD, uint c [[thread_position_in_grid]])
{
    const uint C = args.C, P = args.P;
    if (c >= C) return;
    float sum = args.accumulate ? db[c] : 0.0f;
    for (uint n = 0; n < args.B * args.T; ++n) {
        sum += dy[n * C + c] * (P == 1 ? 1.0f : x[n * P * C + C + c]);
    }
    db[c] = sum;
}

kernel void shortconv_cached(SHORTCONV_CACHED, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, L = args.L, P = args.P, R = args.R, T = args.T;
    if (at >= args.B * C) return;
    const uint i = at / C, c = at % C;
    ring += i * R * C + c;
    for (uint t = 0; t < T; ++t) {
        const uint p = uint(past[i]) + t, n = i * T + t;
        device const float* r = x + n * P * C + c;
        ring[p % R * C] = summed(r, C, P);
        float z = args.has_b ? b[c] : 0.0f;
        for (uint k = 0; k < L && k <= p; ++k) z += w[c * L + L - 1 - k] * ring[(p - k) % R * C];
        y[n * C + c] = P == 1 ? z : z * r[C];
    }
}
