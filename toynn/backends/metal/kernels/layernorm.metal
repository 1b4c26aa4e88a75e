// LayerNorm over the last axis.
//
//   mean[n] = mean_c x[n,c]
//   r[n]    = 1 / sqrt(mean_c (x[n,c] - mean[n])^2 + eps)
//   h[n,c]  = (x[n,c] - mean[n]) r[n]
//   y[n,c]  = h[n,c] w[c] + b[c]
//
//   g[n,c]  = w[c] dy[n,c]
//   dx[n,c] = r[n] (g[n,c] - mean_k g[n,k] - h[n,c] mean_k g[n,k] h[n,k])
//   dw[c]   = sum_n dy[n,c] h[n,c]         db[c] = sum_n dy[n,c]
//
// N rows, a group each; for dw and db a group for LINE columns. Saved for backward: mean (N,), r (N,).
// dx is overwritten; dw and db are overwritten, or added to. Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.

kernel void layernorm_forward(
    LAYERNORM_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    x += n * args.C;
    y += n * args.C;
    const float channels = max(args.C, 1u);
    float sum = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) sum += x[c];
    const float middle = group_sum(sum, part, tid) / channels;
    sum = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) sum += (x[c] - middle) * (x[c] - middle);
    const float scale = 1.0f / precise::sqrt(group_sum(sum, part, tid) / channels + args.eps);
    if (tid == 0) {
        mean[n] = middle;
        r[n] = scale;
    }
    for (uint c = tid; c < args.C; c += GROUP) y[c] = (x[c] - middle) * scale * w[c] + b[c];
}

kernel void layernorm_backward_x(
    LAYERNORM_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    dx += n * args.C;
    dy += n * args.C;
    x += n * args.C;
    const float middle = mean[n], scale = r[n], channels = max(args.C, 1u);
    float g = 0.0f, gh = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) {
        g += w[c] * dy[c];
        gh += w[c] * dy[c] * ((x[c] - middle) * scale);
    }
    g = group_sum(g, part, tid) / channels;
    gh = group_sum(gh, part, tid) / channels;
    for (uint c = tid; c < args.C; c += GROUP) {
        dx[c] = scale * (w[c] * dy[c] - g - (x[c] - middle) * scale * gh);
    }
}

kernel void layernorm_backward_w(
    LAYERNORM_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint c = group * LINE + tid % LINE;
    float w_sum = 0.0f, b_sum = 0.0f;
    if (c < args.C) {
        for (uint n = tid / LINE; n < args.N; n += GROUP / LINE) {
            const float d = dy[n * args.C + c];
            w_sum += d * ((x[n * args.C + c] - mean[n]) * r[n]);
            b_sum += d;
        }
    }
    w_sum = column_sum(w_sum, part, tid);
    b_sum = column_sum(b_sum, part, tid);
    if (tid >= LINE || c >= args.C) return;
    if (args.has_dw) dw[c] = args.accumulate ? dw[c] + w_sum : w_sum;
    if (args.has_db) db[c] = args.accumulate ? db[c] + b_sum : b_sum;
}
