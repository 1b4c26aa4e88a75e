// ORPO: cross-entropy of the chosen completion, plus a loss for its odds against the rejected one. Formulas: orpo.pyx.
#include "preference.metal"

static inline float length_of(device const int* bounds, uint s) { return float(bounds[2 * s + 2] - bounds[2 * s + 1]); }

static inline float average(device const float* sums, device const int* bounds, uint s) {
    const float found = completion(sums, s) / length_of(bounds, s);
    return found > -1e-12f ? -1e-12f : found;
}

static inline float log_odds(float a) { return a - precise::log(-exp_minus_one(a)); }

static inline float ratio(device const float* sums, device const int* bounds, uint i) {
    return log_odds(average(sums, bounds, 2 * i)) - log_odds(average(sums, bounds, 2 * i + 1));
}

static inline float chosen_tokens(device const int* bounds, uint pairs) {
    int total = 0;
    for (uint i = 0; i < pairs; ++i) total += bounds[4 * i + 2] - bounds[4 * i];
    return float(total);
}

kernel void orpo_forward(ORPO_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    if (tid != 0) return;
    const uint pairs = min(uint(*count), uint(args.S)) / 2;
    float total = 0.0f, nll = 0.0f;
    for (uint i = 0; i < pairs; ++i) {
        nll += sums[4 * i] + sums[4 * i + 1];
        total += softplus(-ratio(sums, bounds, i));
    }
    *loss = nll / chosen_tokens(bounds, pairs) + args.beta * total / float(pairs);
}

kernel void orpo_backward(ORPO_BACKWARD, uint s [[thread_position_in_grid]])
{
    if (s >= args.S) return;
    const uint pairs = min(uint(*count), uint(args.S)) / 2;
    float prompt = 0.0f, own = 0.0f;
    if (s / 2 < pairs) {
        const float d = *dloss * args.beta / float(pairs) * sigmoid(-ratio(sums, bounds, s / 2));
        own = d / (-exp_minus_one(average(sums, bounds, s)) * length_of(bounds, s));
        if (s % 2 == 0) {
            prompt = *dloss / chosen_tokens(bounds, pairs);
            own += prompt;
        } else {
            own = -own;
        }
    }
    dsums[2 * s] = prompt;
    dsums[2 * s + 1] = own;
}
