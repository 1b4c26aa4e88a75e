// What the two cross-entropy kernels need of a row of logits, and exact sums.

// The maximum of a row.
static inline float row_max(device const float* x, uint V, threadgroup float* part, uint tid) {
    float most = -INFINITY;
    for (uint v = tid; v < V; v += GROUP) most = max(most, x[v]);
    return group_max(most, part, tid);
}

// sum_v e^(x[v] - most).
static inline float exp_sum(device const float* x, float most, uint V, threadgroup float* part, uint tid) {
    float sum = 0.0f;
    for (uint v = tid; v < V; v += GROUP) sum += precise::exp(x[v] - most);
    return group_sum(sum, part, tid);
}

// Whether a label is valid: as a uint, -100 is larger than V.
static inline bool counts(int label, uint V) { return uint(label) < V; }

// How many labels are valid.
static inline float counting(device const int* labels, uint N, uint V, threadgroup float* part, uint tid) {
    float sum = 0.0f;
    for (uint n = tid; n < N; n += GROUP) sum += counts(labels[n], V) ? 1.0f : 0.0f;
    return group_sum(sum, part, tid);
}

// The sum of every `step`-th number; each thread has a compensated (Kahan) sum.
static inline float careful_sum(device const float* x, uint N, uint step, threadgroup float* part, uint tid) {
    float sum = 0.0f, rest = 0.0f;
    for (uint n = tid; n < N; n += GROUP) {
        const float term = x[n * step] - rest;
        const float next = sum + term;
        rest = isinf(next) ? 0.0f : (next - sum) - term;
        sum = next;
    }
    return group_sum(sum, part, tid);
}
