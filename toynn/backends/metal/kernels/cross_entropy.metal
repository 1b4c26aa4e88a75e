// Cross-entropy of softmax(logits) against integer labels, or against dense label rows.
//
//   lse[n]       = log sum_v exp(logits[n,v])
//   loss         = 1/rows sum_n sum_v p[n,v] (lse[n] - logits[n,v])
//   dlogits[n,v] = dloss/rows (s[n] exp(logits[n,v] - lse[n]) - p[n,v]),   s[n] = sum_v p[n,v]
//
// p[n] is the one-hot row of labels[n], or labels[n] itself (dense). rows counts the labelled rows. A row with the
// label -100, or a dense row of zeros, has no label: its dlogits are 0. Without a labelled row, loss is NaN. A group
// for each of N rows leaves the row's loss in scratch; then one group adds up the losses. dlogits may be logits.
// Saved for backward: lse (N,), rows (1,).
// Source: Bridle 1990; the shift by the row's maximum: Blanchard et al. 2021, IMA J. Numer. Anal. 41.
#include "logits.metal"

kernel void cross_entropy_forward_rows(
    CROSS_ENTROPY_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    device const float* x = logits + n * V;
    const float most = row_max(x, V, part, tid);
    const float log_sum = precise::log(exp_sum(x, most, V, part, tid));
    if (tid != 0) return;
    lse[n] = most + log_sum;
    scratch[n] = counts(labels[n], V) ? (most - x[labels[n]]) + log_sum : 0.0f;
}

kernel void cross_entropy_forward(CROSS_ENTROPY_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const float found = counting(labels, args.N, args.V, part, tid);
    const float sum = careful_sum(scratch, args.N, 1, part, tid);
    if (tid != 0) return;
    *rows = found;
    *loss = found == 0.0f ? NAN : sum / found;
}

kernel void cross_entropy_backward(
    CROSS_ENTROPY_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    if (n >= args.N) return;
    const uint V = args.V;
    const int label = labels[n];
    const float scale = *dloss / *rows, shift = lse[n];
    const bool counting = counts(label, V);
    for (uint v = tid; v < V; v += GROUP) {
        const float p = precise::exp(logits[n * V + v] - shift) * scale - (v == uint(label) ? scale : 0.0f);
        dlogits[n * V + v] = counting ? p : 0.0f;
    }
}

kernel void cross_entropy_forward_dense_rows(
    CROSS_ENTROPY_FORWARD_DENSE, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    device const float* x = logits + n * V;
    device const float* p = labels + n * V;
    const float most = row_max(x, V, part, tid);
    const float log_sum = precise::log(exp_sum(x, most, V, part, tid));
    float sum = 0.0f, any = 0.0f;
    for (uint v = tid; v < V; v += GROUP) {
        sum += p[v] != 0.0f ? p[v] * (log_sum + (most - x[v])) : 0.0f;  // 0 even if x[v] is -infinity
        any = p[v] != 0.0f ? 1.0f : any;
    }
    sum = group_sum(sum, part, tid);
    any = group_max(any, part, tid);
    if (tid != 0) return;
    lse[n] = most + log_sum;
    scratch[2 * n] = sum;
    scratch[2 * n + 1] = any;
}

kernel void cross_entropy_forward_dense(CROSS_ENTROPY_FORWARD_DENSE, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const float sum = careful_sum(scratch, args.N, 2, part, tid);
    const float found = careful_sum(scratch + 1, args.N, 2, part, tid);
    if (tid != 0) return;
    *rows = found;
    *loss = found == 0.0f ? NAN : sum / found;
}

kernel void cross_entropy_backward_dense(
    CROSS_ENTROPY_BACKWARD_DENSE, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    device const float* p = labels + n * V;
    float sum = 0.0f, any = 0.0f;
    for (uint v = tid; v < V; v += GROUP) {
        sum += p[v];
        any = p[v] != 0.0f ? 1.0f : any;
    }
    sum = group_sum(sum, part, tid);
    any = group_max(any, part, tid);
    const float scale = *dloss / *rows, shift = lse[n];
    for (uint v = tid; v < V; v += GROUP) {
        const float d = scale * (sum * precise::exp(logits[n * V + v] - shift) - p[v]);
        dlogits[n * V + v] = any != 0.0f ? d : 0.0f;
    }
}
