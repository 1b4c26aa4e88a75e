// Gaussian top-k: ReLU above a cutoff that a set share of each row exceeds, if it is Gaussian.
//
//   mean[n] = mean_c x[n,c],  dev[n] = sqrt(mean_c (x[n,c] - mean)^2)
//   t[n]    = mean[n] + z dev[n]
//   y[n,c]  = max(x[n,c] - t[n], 0)
//
//   dx[n,c] = [x > t] dy[n,c] - S[n] (1 + z (x[n,c] - mean[n]) / dev[n]) / C
//   S[n]    = sum_c [x > t] dy[n,c]
//
// N rows of C numbers, a group of threads each. Saved for backward: mean and dev (N,). In place: dx may be dy.
// Source: You et al. 2025, arXiv:2506.06644, section 3.

kernel void gaussian_topk_forward(
    GAUSSIAN_TOPK_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C;
    if (n >= args.N) return;
    x += n * C;
    float sum = 0.0f, squares = 0.0f;
    for (uint c = tid; c < C; c += GROUP) sum += x[c];
    const float m = group_sum(sum, part, tid) / max(C, 1u);
    for (uint c = tid; c < C; c += GROUP) squares = fma(x[c] - m, x[c] - m, squares);
    const float s = precise::sqrt(group_sum(squares, part, tid) / max(C, 1u));
    const float t = m + args.z * s;
    if (tid == 0) {
        mean[n] = m;
        dev[n] = s;
    }
    for (uint c = tid; c < C; c += GROUP) y[n * C + c] = x[c] < t ? 0.0f : x[c] - t;
}

kernel void gaussian_topk_backward(
    GAUSSIAN_TOPK_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C;
    if (n >= args.N) return;
    x += n * C;
    const float m = mean[n], s = dev[n], t = m + args.z * s;
    float sum = 0.0f;
    for (uint c = tid; c < C; c += GROUP) sum += x[c] <= t ? 0.0f : dy[n * C + c];
    const float total = group_sum(sum, part, tid) / max(C, 1u);
    const float slope = s == 0.0f ? 0.0f : total * args.z / s;
    for (uint c = tid; c < C; c += GROUP) {
        const float d = x[c] <= t ? 0.0f : dy[n * C + c];
        dx[n * C + c] = d - (total + slope * (x[c] - m));
    }
}
