// GELU of one number and its slope, for gelu and for products followed by GELU. Formulas: gelu.metal.

static inline float below(float x) { return 0.5f + 0.5f * erf_(x * 0.70710678f); }

static inline float gelu_exact(float x) { return x * below(x); }

static inline float gelu_exact_slope(float x) {
    return below(x) + x * 0.39894228f * precise::exp(-0.5f * x * x);
}

static inline float gelu_u(float x) { return x * (1.5957691f + 0.07135481f * x * x); }

static inline float gelu_tanh(float x) { return x * sigmoid(gelu_u(x)); }

static inline float gelu_tanh_slope(float x) {
    float ds;
    const float s = sigmoid_slope(gelu_u(x), ds);
    return s + x * ds * (1.5957691f + 0.21406444f * x * x);
}
