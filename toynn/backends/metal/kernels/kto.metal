// KTO: a completion that is wanted shall gain on the reference, one that is not shall lose. Formulas: kto.pyx.

kernel void kto_forward(device float*        loss      [[buffer(0)]],
                        device const float*  sums      [[buffer(1)]],
                        device const float*  reference [[buffer(2)]],
                        device const float*  kl        [[buffer(3)]],
                        device const int*    wanted    [[buffer(4)]],
                        device const int*    count     [[buffer(5)]],
                        constant KtoForward& args      [[buffer(6)]],
                        uint tid [[thread_index_in_threadgroup]])
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

kernel void kto_backward(device float*         dsums     [[buffer(0)]],
                         device const float*   dloss     [[buffer(1)]],
                         device const float*   sums      [[buffer(2)]],
                         device const float*   reference [[buffer(3)]],
                         device const float*   kl        [[buffer(4)]],
                         device const int*     wanted    [[buffer(5)]],
                         device const int*     count     [[buffer(6)]],
                         constant KtoBackward& args      [[buffer(7)]],
                         uint s [[thread_position_in_grid]])
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
