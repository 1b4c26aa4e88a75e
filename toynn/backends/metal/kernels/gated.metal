// Heads with gates: what attention gave is let through by a gate that came with the queries.
//
//   q[n,h,d] = x[n,h,0,d]                                       queries
//   y[n,h,d] = o[n,h,d] s           s = 1 / (1 + e^-x[n,h,1,d])
//
//   dx[n,h,0,d] = dq[n,h,d],  dx[n,h,1,d] = 0                   queries_backward
//   do[n,h,d]   = dy s
//   dx[n,h,1,d] = dy o s (1 - s),  dx[n,h,0,d] = 0
//
// A thread for each number of N rows of H heads of D. In place: y may be o, do may be dy.
// Source: Qiu et al. 2025, arXiv:2505.06708.

kernel void gated_queries(device float*           q    [[buffer(0)]],
                          device const float*     x    [[buffer(1)]],
                          constant GatedQueries&  args [[buffer(2)]],
                          uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    q[at] = x[at / D * 2 * D + at % D];
}

kernel void gated_queries_backward(device float*                   dx   [[buffer(0)]],
                                   device const float*             dq   [[buffer(1)]],
                                   constant GatedQueriesBackward&  args [[buffer(2)]],
                                   uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    device float* d = dx + at / D * 2 * D + at % D;
    d[0] = dq[at];
    d[D] = 0.0f;
}

kernel void gated_forward(device float*           y    [[buffer(0)]],
                          device const float*     o    [[buffer(1)]],
                          device const float*     x    [[buffer(2)]],
                          constant GatedForward&  args [[buffer(3)]],
                          uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    y[at] = o[at] * sigmoid(x[at / D * 2 * D + D + at % D]);
}

kernel void gated_backward(device float*            d_o  [[buffer(0)]],
                           device float*            dx   [[buffer(1)]],
                           device const float*      dy   [[buffer(2)]],
                           device const float*      o    [[buffer(3)]],
                           device const float*      x    [[buffer(4)]],
                           constant GatedBackward&  args [[buffer(5)]],
                           uint at [[thread_position_in_grid]])
{
    const uint D = args.D;
    if (at >= args.N * args.H * D) return;
    const uint query = at / D * 2 * D + at % D;
    const float d = dy[at];
    float slope;
    const float s = sigmoid_slope(x[query + D], slope);
    dx[query] = 0.0f;
    dx[query + D] = d * o[at] * slope;
    d_o[at] = d * s;
}
