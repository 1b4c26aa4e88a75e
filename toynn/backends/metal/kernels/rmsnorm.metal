// y = x r w, r = 1 / sqrt(mean x^2 + eps), of each row of C numbers. Saved: r.
//
//   forward   a group per row
//   backward  dx = r (w dy - x r^2 mean(w dy x)): a group per row
//             dw = sum_n dy x r: a thread per column, in pieces of rows that are added up in pairs

kernel void rmsnorm_forward(device float*            y    [[buffer(0)]],
                            device float*            r    [[buffer(1)]],
                            device const float*      x    [[buffer(2)]],
                            device const float*      w    [[buffer(3)]],
                            constant RmsnormForward& args [[buffer(4)]],
                            uint n   [[threadgroup_position_in_grid]],
                            uint tid [[thread_index_in_threadgroup]])
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
