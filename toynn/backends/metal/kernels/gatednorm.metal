// RMSNorm over groups of gated channels.
//
//   h[n,g,c]  = x[n,g,c] z s                    s = 1 / (1 + e^-z), z = z[n,g,c]
//   r[n,g]    = 1 / sqrt(mean_c h[n,g,c]^2 + eps)
//   y[n,g,c]  = h[n,g,c] r[n,g] w[g,c]
//
//   dw[g,c]   = sum_n dy h r                    dh = r (w dy - h r^2 mean_k w dy h)
//   dx        = dh z s                          dz = dh x (s + z s (1 - s))
//
// N rows of G groups of C channels, a group of threads each; for dw a group for LINE columns. Saved: r (N,G).
// dx and dz are overwritten; dw is overwritten, or added to. Source: Dao & Gu 2024, arXiv:2405.21060, section 7.

static inline float let_through(float x, float z) { return x * (z * sigmoid(z)); }

kernel void gatednorm_forward(
    GATEDNORM_FORWARD, uint i [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (i >= args.N * args.G) return;
    x += i * args.C;
    z += i * args.C;
    y += i * args.C;
    w += i % args.G * args.C;
    float sum = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) {
        const float h = let_through(x[c], z[c]);
        sum = fma(h, h, sum);
    }
    sum = group_sum(sum, part, tid);
    const float scale = 1.0f / precise::sqrt(sum / max(args.C, 1u) + args.eps);
    if (tid == 0) r[i] = scale;
    for (uint c = tid; c < args.C; c += GROUP) y[c] = let_through(x[c], z[c]) * (scale * w[c]);
}

kernel void gatednorm_backward_x(
    GATEDNORM_BACKWARD, uint i [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (i >= args.N * args.G) return;
    x += i * args.C;
    z += i * args.C;
    dy += i * args.C;
    dx += i * args.C;
    dz += i * args.C;
    w += i % args.G * args.C;
    float dot = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) dot = fma(w[c] * dy[c], let_through(x[c], z[c]), dot);
    dot = group_sum(dot, part, tid) / max(args.C, 1u);
    const float scale = r[i], along = scale * scale * dot;
    for (uint c = tid; c < args.C; c += GROUP) {
        float slope;
        const float s = sigmoid_slope(z[c], slope);
        const float dh = scale * (w[c] * dy[c] - let_through(x[c], z[c]) * along);
        dx[c] = dh * (z[c] * s);
        dz[c] = dh * x[c] * (s + z[c] * slope);
    }
}

kernel void gatednorm_backward_w(
    GATEDNORM_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint c = group * LINE + tid % LINE, K = args.G * args.C;
    float sum = 0.0f;
    if (c < K) {
        for (uint n = tid / LINE; n < args.N; n += GROUP / LINE) {
            const uint at = n * K + c;
            sum += dy[at] * (let_through(x[at], z[at]) * r[n * args.G + c / args.C]);
        }
    }
    sum = column_sum(sum, part, tid);
    if (tid < LINE && c < K) dw[c] = args.accumulate ? dw[c] + sum : sum;
}
