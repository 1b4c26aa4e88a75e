// DPO: raise the odds of the chosen completion over the rejected one, relative to a reference. Formulas: dpo.pyx.
#include "preference.metal"

static inline float margin(device const float* sums, device const float* reference, uint i, float beta) {
    const float chosen = completion(sums, 2 * i) - reference[2 * i];
    return beta * (chosen - (completion(sums, 2 * i + 1) - reference[2 * i + 1]));
}

kernel void dpo_forward(DPO_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    if (tid != 0) return;
    const uint pairs = min(uint(*count), uint(args.S)) / 2;
    float total = 0.0f;
    for (uint i = 0; i < pairs; ++i) {
        const float m = margin(sums, reference, i, args.beta);
        total += (1.0f - args.smoothing) * softplus(-m) + args.smoothing * softplus(m);
    }
    *loss = total / float(pairs);
}

kernel void dpo_backward(DPO_BACKWARD, uint s [[thread_position_in_grid]])
{
    if (s >= args.S) return;
    const uint pairs = min(uint(*count), uint(args.S)) / 2;
    float d = 0.0f;
    if (s / 2 < pairs) {
        const float m = margin(sums, reference, s / 2, args.beta);
        d = (1.0f - args.smoothing) * sigmoid(-m) - args.smoothing * sigmoid(m);
        d *= *dloss * args.beta / float(pairs);
    }
    dsums[2 * s] = 0.0f;
    dsums[2 * s + 1] = s % 2 == 0 ? d : -d;
}
