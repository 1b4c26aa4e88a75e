// Kernels for latent attention: slice and join heads, and multiply each head by its rows of w.
//
//   y[n,h,d]  = x[n,h,first+d]                               columns: D of the W of a head
//   dx[n,h,w] = dy[n,h,w-first], 0 elsewhere                 columns_backward
//   y[n,h,:]  = (a[n,h,:] | b[n,g,:])    g = h G / H         join: P, then R of one of G heads
//   da[n,h,p] = dy[n,h,p],  db[n,g,r] = sum_h dy[n,h,P+r]    join_backward
//
//   y[n,h,c]  = sum_d x[n,h,d] w[g,first+d,c]                absorb, in generation alone
//   y[n,h,d]  = sum_c x[n,h,c] w[g,first+d,c]                expand, likewise
//
// N rows of H heads. One thread computes one output; in absorb, RUN outputs. In expand, a line of threads computes one.
// w may be of any quantized type of quantized.metal. Outputs are overwritten.
// Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
#include "quantized.metal"

kernel void latent_columns(LATENT_COLUMNS, uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    y[at] = x[at / D * args.W + args.first + at % D];
}

kernel void latent_columns_backward(LATENT_COLUMNS_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint W = args.W, D = args.D;
    if (at >= args.N * args.H * W) return;
    const uint w = at % W;
    dx[at] = w >= args.first && w < args.first + D ? dy[at / W * D + w - args.first] : 0.0f;
}

kernel void latent_join(LATENT_JOIN, uint at [[thread_position_in_grid]])
{
    const uint P = args.P, R = args.R, H = args.H;
    if (at >= args.N * H * (P + R)) return;
    const uint c = at % (P + R), head = at / (P + R), n = head / H, g = head % H * args.G / H;
    y[at] = c < P ? a[head * P + c] : b[(n * args.G + g) * R + c - P];
}

kernel void latent_join_backward(LATENT_JOIN_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint P = args.P, R = args.R, H = args.H, G = args.G, served = G ? H / G : 0;
    if (at < args.N * H * P) da[at] = dy[at / P * (P + R) + at % P];
    if (at >= args.N * G * R) return;
    const uint r = at % R, first = at / R * served;  // heads are counted over all rows
    float sum = 0.0f;
    for (uint h = first; h < first + served; ++h) sum += dy[h * (P + R) + P + r];
    db[at] = sum;
}

kernel void latent_absorb(LATENT_ABSORB, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, D = args.D, H = args.H, runs = (C + RUN - 1) / RUN;
    if (at >= args.N * H * runs) return;
    const uint head = at / runs, c = at % runs * RUN, row = head % H * args.G / H * args.W + args.first;
    float sums[RUN], run[RUN];
    for (uint i = 0; i < RUN; ++i) sums[i] = 0.0f;
    for (uint d = 0; d < D; ++d) {
        dequantize(run, w, args.type, row + d, C, c);
        for (uint i = 0; i < min(RUN, C - c); ++i) sums[i] = fma(x[head * D + d], run[i], sums[i]);
    }
    for (uint i = 0; i < min(RUN, C - c); ++i) y[head * C + c + i] = sums[i];
}

kernel void latent_expand(
    LATENT_EXPAND, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C, D = args.D, H = args.H, at = group * (GROUP / LINE) + tid / LINE;
    const uint head = at / D, row = head % H * args.G / H * args.W + args.first + at % D;
    float sum = 0.0f, run[RUN];
    if (at < args.N * H * D) {
        for (uint c = tid % LINE * RUN; c < C; c += LINE * RUN) {
            dequantize(run, w, args.type, row, C, c);
            for (uint i = 0; i < min(RUN, C - c); ++i) sum = fma(x[head * C + c + i], run[i], sum);
        }
    }
    sum = line_sum(sum, part, tid);
    if (at < args.N * H * D && tid % LINE == 0) y[at] = sum;
}
