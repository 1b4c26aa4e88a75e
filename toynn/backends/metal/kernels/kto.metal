// KTO: make wanted completions likelier than under a reference model, others less likely. Formulas: kto.pyx.
#include "preference.metal"

kernel void kto_forward(KTO_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    if (tid != 0) return;
    const uint all = min(uint(*count), uint(args.S));
    float total = 0.0f;
    for (uint s = 0; s < all; ++s) {
        const float g = args.beta * (completion(sums, s) - reference[s] - *kl);
        total += wanted[s] != 0 ? args.good * sigmoid(-g) : args.bad * sigmoid(g);
    }
    *loss = total / float(all);
}

kernel void kto_backward(KTO_BACKWARD, uint s [[thread_position_in_grid]])
{
    if (s >= args.S) return;
    const uint all = min(uint(*count), uint(args.S));
    float d = 0.0f;
    if (s < all) {
        const float g = args.beta * (completion(sums, s) - reference[s] - *kl);
        const float w = wanted[s] != 0 ? args.good : -args.bad;
        d = *dloss * args.beta / float(all) * w * sigmoid(g) * sigmoid(-g);
    }
    dsums[2 * s] = 0.0f;
    dsums[2 * s + 1] = d;
}
