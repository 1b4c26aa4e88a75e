// RMSNorm over the last axis.
//
//   r[n]    = 1 / sqrt(mean_c x[n,c]^2 + eps)
//   y[n,c]  = x[n,c] r[n] w[c]
//
//   dx[n,c] = r[n] (w[c] dy[n,c] - x[n,c] r[n]^2 mean_k w[k] dy[n,k] x[n,k])
//   dw[c]   = sum_n dy[n,c] x[n,c] r[n]
//
// N rows, a group each; for dw a group for LINE columns. Saved for backward: r (N,).
// dx is overwritten; dw is overwritten, or added to. Source: Zhang & Sennrich 2019, arXiv:1910.07467.

kernel void rmsnorm_forward(
    RMSNORM_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    x += n * args.C;
    y += n * args.C;
    float sum = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) sum += x[c] * x[c];
    sum = group_sum(sum, part, tid);
    const float scale = 1.0f / precise::sqrt(sum / max(args.C, 1u) + args.eps);
    if (tid == 0) r[n] = scale;
    for (uint c = tid; c < args.C; c += GROUP) y[c] = x[c] * scale * w[c];
}

kernel void rmsnorm_backward_x(
    RMSNORM_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    dx += n * args.C;
    dy += n * args.C;
    x += n * args.C;
    const float scale = r[n];
    float dot = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) dot += w[c] * dy[c] * x[c];
    dot = group_sum(dot, part, tid) / max(args.C, 1u);
    const float along = scale * scale * dot;
    for (uint c = tid; c < args.C; c += GROUP) dx[c] = scale * (w[c] * dy[c] - x[c] * along);
}

kernel void rmsnorm_backward_w(
    RMSNORM_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint c = group * LINE + tid % LINE;
    float sum = 0.0f;
    if (c < args.C) {
        for (uint n = tid / LINE; n < args.N; n += GROUP / LINE) {
            sum += dy[n * args.C + c] * (x[n * args.C + c] * r[n]);
        }
    }
    sum = column_sum(sum, part, tid);
    if (tid < LINE && c < args.C) dw[c] = args.accumulate ? dw[c] + sum : sum;
}
