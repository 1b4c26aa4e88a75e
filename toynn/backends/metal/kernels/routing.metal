// Routing: the experts that a row goes to, and their weights.
//
//   experts[n,:]   = the K experts e with the largest p[n,e] + b[e], largest first; of equals, the first
//   weights[n,j]   = s f[e_j] p[n,e_j] / Z[n]      e_j = experts[n,j];  Z = eps + sum_j p[n,e_j], or 1
//   dp[n,e_j]      = s f[e_j] dw[n,j]                                   without Z
//                    (s f[e_j] dw[n,j] - sum_i dw[n,i] w[n,i]) / Z[n]   with it (normalized)
//   dp[n,e]        = 0                                                  for the others
//   df[e]          = sum of s dw[n,j] p[n,e] / Z[n]                     over the n, j with e_j = e
//
// With G groups of E / G experts, a group's score is the sum of its two largest p + b, or the largest (best 1). Only
// experts of the L groups with the largest scores are chosen.
//
// N rows, a thread each, for df an expert each; E experts, K of them chosen; b and f may be missing. NaN counts as
// larger than any number.
// Source: Shazeer et al. 2017, arXiv:1701.06538, section 2.1; Jiang et al. 2024, arXiv:2401.04088.

static inline bool is_larger(float x, float y) { return x > y || (isnan(x) && !isnan(y)); }

static inline float score_of(device const float* p, device const float* b, uint has_b, uint e) {
    return has_b ? p[e] + b[e] : p[e];
}

constant constexpr uint GROUPS = 64;  // most groups

// The sum of the `best` largest scores, one or two, of experts `first` .. `end` - 1.
static inline float group_score(
    device const float* p, device const float* b, uint has_b, uint first, uint end, uint best) {
    float most = -INFINITY, second = -INFINITY;
    for (uint e = first; e < end; ++e) {
        const float score = score_of(p, b, has_b, e);
        if (is_larger(score, most)) {
            second = most;
            most = score;
        } else if (is_larger(score, second)) {
            second = score;
        }
    }
    return best > 1 ? most + second : most;
}

static inline float total_of(device const float* p, device const int* experts, uint K, float eps) {
    float total = eps;
    for (uint j = 0; j < K; ++j) total += p[experts[j]];
    return total;
}

kernel void routing_forward(ROUTING_FORWARD, uint n [[thread_position_in_grid]])
{
    const uint E = args.E, K = args.K;
    if (n >= args.N) return;
    weights += n * K;
    experts += n * K;
    p += n * E;
    const uint G = args.G, size = E / G;
    float scores[GROUPS];
    bool stays[GROUPS];
    if (args.L < G) {
        for (uint g = 0; g < G; ++g)
            scores[g] = group_score(p, b, args.has_b, g * size, (g + 1) * size, args.best);
        for (uint g = 0; g < G; ++g) {
            uint before = 0;
            for (uint h = 0; h < G; ++h) {
                before += is_larger(scores[h], scores[g]) || (h < g && !is_larger(scores[g], scores[h])) ? 1 : 0;
            }
            stays[g] = before < args.L;
        }
    }
    uint count = 0;
    for (uint e = 0; e < E; ++e) {
        if (args.L < G && !stays[e / size]) continue;
        const float score = score_of(p, b, args.has_b, e);
        uint j = min(count++, K - 1);
        if (count > K && !is_larger(score, score_of(p, b, args.has_b, experts[j]))) continue;
        while (j > 0 && is_larger(score, score_of(p, b, args.has_b, experts[j - 1]))) {
            experts[j] = experts[j - 1];
            --j;
        }
        experts[j] = int(e);
    }
    const float factor = args.normalized ? args.scale / total_of(p, experts, K, args.eps) : args.scale;
    for (uint j = 0; j < K; ++j) weights[j] = p[experts[j]] * factor * (args.has_f ? f[experts[j]] : 1.0f);
}

kernel void routing_backward_p(ROUTING_BACKWARD, uint n [[thread_position_in_grid]])
{
    const uint E = args.E, K = args.K;
    if (n >= args.N) return;
    dp += n * E;
    dweights += n * K;
    weights += n * K;
    experts += n * K;
    float common = 0.0f, factor = 1.0f;
    for (uint e = 0; e < E; ++e) dp[e] = 0.0f;
    if (args.normalized) {
        for (uint j = 0; j < K; ++j) common += dweights[j] * weights[j];
        factor = 1.0f / total_of(p + n * E, experts, K, args.eps);
    }
    for (uint j = 0; j < K; ++j) {
        const float d = args.scale * dweights[j] * (args.has_f ? f[experts[j]] : 1.0f);
        dp[experts[j]] = (d - common) * factor;
    }
}

kernel void routing_backward_f(ROUTING_BACKWARD, uint e [[thread_position_in_grid]])
{
    const uint E = args.E, K = args.K;
    if (e >= E) return;
    float sum = args.accumulate ? df[e] : 0.0f;
    for (uint n = 0; n < args.N; ++n, dweights += K, p += E, experts += K)
        for (uint j = 0; j < K; ++j) {
            if (uint(experts[j]) != e) continue;
            const float total = args.normalized ? total_of(p, experts, K, args.eps) : 1.0f;
            sum += dweights[j] * p[e] * (args.scale / total);
        }
    df[e] = sum;
}
