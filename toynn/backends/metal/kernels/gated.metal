// Gated attention heads: multiply the output of attention by a gate that came with the queries.
//
//   q[n,h,d] = x[n,h,part,d]                                    queries
//   y[n,h,d] = o[n,h,d] s           s = 1 / (1 + e^-x[n,h,1,d])
//
//   dx[n,h,part,d] = dq[n,h,d],  dx[n,h,1 - part,d] = 0         queries_backward
//   do[n,h,d]   = dy s
//   dx[n,h,1,d] = dy o s (1 - s),  dx[n,h,0,d] = 0
//
// A thread for each number of N rows of H heads of D. In place: y may be o, do may be dy.
// Source: Qiu et al. 2025, arXiv:2505.06708.

kernel void gated_queries(GATED_QUERIES, uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    q[at] = x[(at / D * 2 + args.part) * D + at % D];
}

kernel void gated_queries_backward(GATED_QUERIES_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    device float* d = dx + at / D * 2 * D + at % D;
    d[args.part * D] = dq[at];
    d[(1 - args.part) * D] = 0.0f;
}

kernel void gated_forward(GATED_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    y[at] = o[at] * sigmoid(x[at / D * 2 * D + D + at % D]);
}

kernel void gated_backward(GATED_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    const uint query = at / D * 2 * D + at % D;
    const float d = dy[at];
    float slope;
    const float s = sigmoid_slope(x[query + D], slope);
    dx[query] = 0.0f;
    dx[query + D] = d * o[at] * slope;
    do_[at] = d * s;
}
