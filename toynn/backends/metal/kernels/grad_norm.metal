// The norm of all gradients, and from it the one factor that AdamW applies to them.
//
//   norm  = weight_inverse sqrt(sum_i g[i]^2)
//   scale = weight_inverse min(1, max_norm / (norm + 1e-6))
//
// control = [max_norm, weight_inverse]. max_norm <= 0 means no clipping (the min is 1). scale is NaN if norm is
// not finite: AdamW then writes nothing. First a group sums the squares of BLOCK elements. Then one group adds up
// the blocks, every GROUP-th on the same thread, with compensated (Kahan) sums. Blocks are scaled down if their
// sum could overflow.
// Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.

constant constexpr uint BLOCK = 16384;  // grids.py knows it too

kernel void grad_norm_forward_blocks(
    GRAD_NORM_FORWARD, uint b [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint end = min(args.n, (b + 1) * BLOCK);
    float sum = 0.0f;
    for (uint i = b * BLOCK + tid; i < end; i += GROUP) sum += g[i] * g[i];
    sum = group_sum(sum, part, tid);
    if (tid == 0) scratch[b] = sum;
}

kernel void grad_norm_forward(GRAD_NORM_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint blocks = (args.n + BLOCK - 1) / BLOCK;
    float most = 0.0f;
    for (uint b = tid; b < blocks; b += GROUP) most = max(most, scratch[b]);
    most = group_max(most, part, tid);
    const bool large = most > 1.2676506e30f;                      // 2^100
    const float unit = large ? 5.421010862427522e-20f : 1.0f;     // 2^-64
    float sum = 0.0f, rest = 0.0f;
    for (uint b = tid; b < blocks; b += GROUP) {
        const float term = scratch[b] * unit - rest;
        const float next = sum + term;
        rest = isinf(next) ? 0.0f : (next - sum) - term;
        sum = next;
    }
    sum = group_sum(sum, part, tid);
    if (tid != 0) return;
    const float max_norm = control[0], weight_inverse = control[1];
    const float all = weight_inverse * (precise::sqrt(sum) * (large ? 4294967296.0f : 1.0f));
    float clip = 1.0f;
    if (!(max_norm <= 0.0f)) {  // true for NaN too, which must not mean no clipping
        clip = max_norm / (all + 1e-6f);
        clip = clip > 1.0f ? 1.0f : clip;
    }
    *norm = all;
    *scale = isnan(all) || isinf(all) ? NAN : weight_inverse * clip;
}
