// Sums of token losses: over the prompt of each sequence, and over its completion.
//
//   forward  sums[k]    = sum of losses[bounds[k] .. bounds[k+1]-1],   k = 2 s for prompts, 2 s + 1 for completions
//   backward dlosses[n] = dsums[k] of the part that holds row n; 0 if no part holds it
//
// forward: a group for each part, with compensated (Kahan) sums. backward: a thread for each row finds its part.
#include "logits.metal"

kernel void token_sums_forward(
    TOKEN_SUMS_FORWARD, uint k [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (k >= 2 * args.S) return;
    const uint first = uint(bounds[k]), end = min(uint(bounds[k + 1]), uint(args.N));
    const float sum = careful_sum(losses + first, end > first ? end - first : 0, 1, part, tid);
    if (tid == 0) sums[k] = sum;
}

kernel void token_sums_backward(TOKEN_SUMS_BACKWARD, uint n [[thread_position_in_grid]])
{
    if (n >= args.N) return;
    float found = 0.0f;
    for (uint k = 0; k < 2 * args.S; ++k) {
        if (int(n) >= bounds[k] && int(n) < bounds[k + 1]) found = dsums[k];
    }
    dlosses[n] = found;
}
