// Sums over an axis, and copies along one: each is the gradient of the other.
//
//   forward  y[a,b]   = alpha sum_n x[a,n,b]
//   expand   y[a,n,b] = alpha x[a,b]
//
// forward: a group for each sum, which keeps the digits that rounding drops (Kahan); y is overwritten, or added to.
// expand: a thread for each element of y. Formulas: sums.pyx.

kernel void sums_forward(
    SUMS_FORWARD, uint at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (at >= args.A * args.B) return;
    x += at / args.B * args.N * args.B + at % args.B;
    float sum = 0.0f, lost = 0.0f;
    for (uint n = tid; n < args.N; n += GROUP) {
        const float more = x[n * args.B] - lost, next = sum + more;
        lost = next - sum - more;
        sum = next;
    }
    sum = args.alpha * group_sum(sum, part, tid);
    if (tid == 0) y[at] = args.accumulate ? y[at] + sum : sum;
}

kernel void sums_expand(SUMS_EXPAND, uint at [[thread_position_in_grid]])
{
    if (at >= args.A * args.N * args.B) return;
    y[at] = args.alpha * x[at / (args.N * args.B) * args.B + at % args.B];
}
