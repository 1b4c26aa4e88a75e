// Cross-entropy of logits that come in chunks of rows. One chunk at a time is in memory.
//
//   count     rows         = number of labels
//   forward   losses[n]    = log sum_v e^x[n,v] - x[n,labels[n]]
//   backward  dlogits[n,v] = dloss/rows (e^x[n,v] / sum_k e^x[n,k] - [v = labels[n]]);  losses too
//   mean      loss         = 1/rows sum_n losses[n]
//
// x are the logits of N rows, a group each, V classes. A row whose label is -100 has none: its loss and
// dlogits are 0. Without a labelled row, loss is NaN. dlogits may be the logits. count and mean use one group.
// Sources: those of cross_entropy.metal; chunks: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989, section 3.2.
#include "logits.metal"

kernel void chunked_cross_entropy_count(CHUNKED_CROSS_ENTROPY_COUNT, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const float found = counting(labels, args.N, args.V, part, tid);
    if (tid == 0) *rows = found;
}

kernel void chunked_cross_entropy_forward(
    CHUNKED_CROSS_ENTROPY_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    const int label = labels[n];
    device const float* x = logits + n * V;
    const float most = row_max(x, V, part, tid);
    const float log_sum = precise::log(exp_sum(x, most, V, part, tid));
    if (tid == 0) losses[n] = counts(label, V) ? (most - x[label]) + log_sum : 0.0f;
}

kernel void chunked_cross_entropy_backward(
    CHUNKED_CROSS_ENTROPY_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    const int label = labels[n];
    device const float* x = logits + n * V;
    device float* dx = dlogits + n * V;
    const bool counting = counts(label, V);
    const float own = counting ? x[label] : 0.0f;
    threadgroup_barrier(mem_flags::mem_device);  // dlogits may be the same memory as logits
    const float most = row_max(x, V, part, tid);
    const float sum = exp_sum(x, most, V, part, tid);
    const float scale = *dloss / *rows, factor = scale / sum;
    for (uint v = tid; v < V; v += GROUP) {
        const float p = precise::exp(x[v] - most) * factor - (v == uint(label) ? scale : 0.0f);
        dx[v] = counting ? p : 0.0f;
    }
    if (tid == 0) losses[n] = counting ? (most - own) + precise::log(sum) : 0.0f;
}

kernel void chunked_cross_entropy_mean(CHUNKED_CROSS_ENTROPY_MEAN, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const float sum = careful_sum(losses, args.N, 1, part, tid);
    if (tid == 0) *loss = *rows == 0.0f ? NAN : sum / *rows;
}

kernel void chunked_cross_entropy_each(
    CHUNKED_CROSS_ENTROPY_EACH, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V;
    const int label = labels[n];
    device const float* x = logits + n * V;
    device float* dx = dlogits + n * V;
    const bool counting = counts(label, V);
    const float most = row_max(x, V, part, tid);
    const float scale = dlosses[n], factor = scale / exp_sum(x, most, V, part, tid);
    for (uint v = tid; v < V; v += GROUP) {
        const float p = precise::exp(x[v] - most) * factor - (v == uint(label) ? scale : 0.0f);
        dx[v] = counting ? p : 0.0f;
    }
}
