// DoRA: each output of W + s B A has its own magnitude, separate from its direction.
//
//   norms    r[c]   = 1 / sqrt(squares[c] + 2 s sum_k b[c,k] p[k,c] + s^2 b[c] g b[c]^T)
//   forward  y[n,c] = x[n,c] m[c] r[c] + bias[c]
//   backward dx     = dy m r,  dm[c] = sum_n dy[n,c] x[n,c] r[c]
//
// p (R,C) = A W^T, g (R,R) = A A^T. A thread for each norm and each element; for dm a group for LINE columns.
// A norm of 0 gives r = 0. dx is overwritten; dm is overwritten, or added to.
// Source: Liu et al. 2024, DoRA, arXiv:2402.09353, equations 5 and 11.

kernel void dora_norms(DORA_NORMS, uint c [[thread_position_in_grid]])
{
    if (c >= args.C) return;
    b += c * args.R;
    float cross = 0.0f, own = 0.0f;
    for (uint k = 0; k < args.R; ++k) {
        cross += b[k] * p[k * args.C + c];
        float part = 0.0f;
        for (uint l = 0; l < args.R; ++l) part += g[k * args.R + l] * b[l];
        own += b[k] * part;
    }
    const float norm = squares[c] + args.scale * (2.0f * cross + args.scale * own);
    r[c] = norm <= 0.0f ? 0.0f : 1.0f / precise::sqrt(norm);
}

kernel void dora_forward(DORA_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.C) return;
    const uint c = i % args.C;
    const float scaled = x[i] * (m[c] * r[c]);
    y[i] = args.has_bias ? scaled + bias[c] : scaled;
}

kernel void dora_backward_x(DORA_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.C) return;
    const uint c = i % args.C;
    dx[i] = dy[i] * (m[c] * r[c]);
}

kernel void dora_backward_m(
    DORA_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint c = group * LINE + tid % LINE;
    float sum = 0.0f;
    if (c < args.C) {
        for (uint n = tid / LINE; n < args.N; n += GROUP / LINE) sum += dy[n * args.C + c] * x[n * args.C + c];
    }
    sum = column_sum(sum, part, tid);
    if (tid < LINE && c < args.C) dm[c] = args.accumulate ? dm[c] + sum * r[c] : sum * r[c];
}
