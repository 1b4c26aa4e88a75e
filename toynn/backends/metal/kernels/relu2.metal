// Squared ReLU.
//
//   y  = max(x, 0)^2
//   dx = 2 max(x, 0) dy
//
// n elements, one thread each. In place: y may be x, dx may be dy. Source: So et al. 2021, arXiv:2109.08668, section 3.

static inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

kernel void relu2_forward(RELU2_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = relu(x[i]) * relu(x[i]);
}

kernel void relu2_backward(RELU2_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = 2.0f * relu(x[i]) * dy[i];
}
