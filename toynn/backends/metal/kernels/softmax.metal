// Softmax over the last axis.
//
//   y[n,c]  = e^(x[n,c] - max_k x[n,k]) / sum_k e^(x[n,k] - max_j x[n,j])
//   dx[n,c] = y[n,c] (dy[n,c] - sum_k dy[n,k] y[n,k])
//
// N rows, a group each; C channels. In place: y may be x, dx may be dy, since a thread keeps to its own columns.
// -infinity gives 0. A row of nothing but -infinity, or with a NaN or +infinity, gives NaN.

kernel void softmax_forward(
    SOFTMAX_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    x += n * args.C;
    y += n * args.C;
    float most = -INFINITY;
    for (uint c = tid; c < args.C; c += GROUP) most = max(most, x[c]);
    most = group_max(most, part, tid);
    float sum = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) {
        const float e = precise::exp(x[c] - most);
        y[c] = e;
        sum += e;
    }
    sum = group_sum(sum, part, tid);
    for (uint c = tid; c < args.C; c += GROUP) y[c] /= sum;
}

kernel void softmax_backward(
    SOFTMAX_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    dx += n * args.C;
    dy += n * args.C;
    y += n * args.C;
    float dot = 0.0f;
    for (uint c = tid; c < args.C; c += GROUP) dot += dy[c] * y[c];
    dot = group_sum(dot, part, tid);
    for (uint c = tid; c < args.C; c += GROUP) dx[c] = y[c] * (dy[c] - dot);
}
