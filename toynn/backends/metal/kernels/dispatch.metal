// Dispatch: copy each row to its experts, weigh the copies, and add them up again.
//
//   forward            y[r,c]    = x[n,c]                      combine is its gradient
//   combine            y[n,c]    = sum_j x[slots[n,j],c]       forward is its gradient
//   weigh              y[r,c]    = w[n,j] x[r,c]
//   weigh_backward     dx[r,c]   = w[n,j] dy[r,c]
//                      dw[n,j]   = sum_c dy[r,c] x[r,c]        r = slots[n,j]
//
// N rows of C channels, K copies of each. A thread for each output; in weigh_backward a group for each copy.
// Source: Lepikhin et al. 2020, GShard, arXiv:2006.16668, section 3.2.

kernel void dispatch_forward(DISPATCH_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint C = args.C;
    if (at >= args.N * args.K * C) return;
    const uint copy = at / C, c = at % C;
    y[uint(slots[copy]) * C + c] = x[copy / args.K * C + c];
}

kernel void dispatch_combine(DISPATCH_COMBINE, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, K = args.K;
    if (at >= args.N * C) return;
    const uint n = at / C, c = at % C;
    float sum = 0.0f;
    for (uint j = 0; j < K; ++j) sum += x[uint(slots[n * K + j]) * C + c];
    y[at] = sum;
}

kernel void dispatch_weigh(DISPATCH_WEIGH, uint at [[thread_position_in_grid]])
{
    const uint C = args.C;
    if (at >= args.N * args.K * C) return;
    const uint copy = at / C, to = uint(slots[copy]) * C + at % C;
    y[to] = w[copy] * x[to];
}

kernel void dispatch_weigh_backward(
    DISPATCH_WEIGH_BACKWARD, uint copy [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C;
    if (copy >= args.N * args.K) return;
    const uint first = uint(slots[copy]) * C;
    float dot = 0.0f;
    for (uint c = tid; c < C; c += GROUP) dot += dy[first + c] * x[first + c];
    dot = group_sum(dot, part, tid);
    if (tid == 0) dw[copy] = dot;
    for (uint c = tid; c < C; c += GROUP) dx[first + c] = w[copy] * dy[first + c];
}
