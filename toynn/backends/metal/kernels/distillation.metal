// Divergence from a teacher's log probabilities, mixed with cross-entropy, for a chunk of rows.
// Formulas: distillation.pyx.
//
// A group for each row. Outcomes are the K tokens that the teacher names, and the rest.
#include "logits.metal"

constant float LEAST = -69.0775527f;  // log 1e-30

// An outcome's part of D; h is its slope.
static inline float term(thread float& h, float log_q, float log_p, float beta) {
    const float q = precise::exp(log_q), p = precise::exp(log_p);
    if (beta == 0.0f) {
        h = -p;
        return p * (log_p - log_q);
    }
    if (beta == 1.0f) return h = q * (log_q - log_p);
    const float log_m = precise::log(beta * p + (1.0f - beta) * q);
    h = (1.0f - beta) * q * (log_q - log_m);
    return beta * p * (log_p - log_m) + h;
}

static inline float at_least(float log_p) { return log_p < LEAST ? LEAST : log_p; }

// Where the teacher names a token, or K.
static inline uint found(device const int* ids, uint v, uint K) {
    for (uint k = 0; k < K; ++k)
        if (uint(ids[k]) == v) return k;
    return K;
}

// The loss of a row; its gradient goes to dx (which may be x) if ``graded``.
static inline float row_of(
    device float* dx, device const float* x, int label, device const int* ids, device const float* log_p,
    float log_rest, float w, bool graded, float scale, uint V, uint K, float beta, float temperature,
    threadgroup float* part, uint tid)
{
    const bool counting = counts(label, V);
    const float own = counting ? x[label] : 0.0f;
    threadgroup_barrier(mem_flags::mem_device);  // dx may be the same memory as x
    const float most = row_max(x, V, part, tid), sum = exp_sum(x, most, V, part, tid);
    float loss = (1.0f - w) * ((most - own) + precise::log(sum)), other = 0.0f, H = 0.0f, log_total = 0.0f;
    const float each = w == 0.0f ? 0.0f : w * scale / temperature;
    if (w != 0.0f) {
        float rest = 0.0f, named = 0.0f, D = 0.0f, h;
        for (uint v = tid; v < V; v += GROUP)
            if (found(ids, v, K) == K) rest += precise::exp((x[v] - most) / temperature);
        rest = group_sum(rest, part, tid);
        for (uint k = tid; k < K; k += GROUP) named += precise::exp((x[ids[k]] - most) / temperature);
        log_total = precise::log(rest + group_sum(named, part, tid));
        for (uint k = tid; k < K; k += GROUP) {
            D += term(h, (x[ids[k]] - most) / temperature - log_total, log_p[k], beta);
            H += h;
        }
        D = group_sum(D, part, tid);
        H = group_sum(H, part, tid);
        const float log_q = at_least(precise::log(rest) - log_total);
        D += term(h, log_q, at_least(log_rest), beta);
        H += h;
        loss += w * D;
        other = each * (h / precise::exp(log_q) - H);
    }
    if (graded) {
        for (uint v = tid; v < V; v += GROUP) {
            float d = precise::exp(x[v] - most) * (1.0f - w) * scale / sum;
            d -= v == uint(label) ? (1.0f - w) * scale : 0.0f;
            if (w != 0.0f) {
                const float log_q = (x[v] - most) / temperature - log_total, q = precise::exp(log_q);
                const uint k = found(ids, v, K);
                float h = 0.0f;
                if (k < K) term(h, log_q, log_p[k], beta);
                d += k < K ? each * (h - q * H) : other * q;
            }
            dx[v] = counting ? d : 0.0f;
        }
    }
    return counting ? loss : 0.0f;
}

kernel void distillation_forward(
    DISTILLATION_FORWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V, K = args.K;
    const float loss = row_of(losses, logits + n * V, labels[n], ids + n * K, log_p + n * K, log_rest[n],
                              *weight, false, 0.0f, V, K, args.beta, args.temperature, part, tid);
    if (tid == 0) losses[n] = loss;
}

kernel void distillation_backward(
    DISTILLATION_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const uint V = args.V, K = args.K;
    const float loss = row_of(dlogits + n * V, logits + n * V, labels[n], ids + n * K, log_p + n * K, log_rest[n],
                              *weight, true, *dloss / *rows, V, K, args.beta, args.temperature, part, tid);
    if (tid == 0) losses[n] = loss;
}
