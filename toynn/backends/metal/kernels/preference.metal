// Shared by the preference losses. Each has only a few numbers per pair; one thread computes the loss.

// log(1 + e^x).
static inline float softplus(float x) { return max(x, 0.0f) + precise::log(1.0f + precise::exp(-fabs(x))); }

// e^x - 1 with all digits (Kahan).
static inline float exp_minus_one(float x) {
    const float e = precise::exp(x);
    return e == 1.0f ? x : (e - 1.0f) * (x / precise::log(e));
}

// log p of the completion of sequence s; sums holds its losses.
static inline float completion(device const float* sums, uint s) { return -sums[2 * s + 1]; }
