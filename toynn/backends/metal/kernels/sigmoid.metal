// Sigmoid: a score between 0 and 1 for each element. Some routers use it instead of softmax.
//
//   y  = s                      s = 1 / (1 + e^-x)
//   dx = dy s (1 - s)
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.

kernel void sigmoid_forward(
    device float*             y    [[buffer(SigmoidForward::y)]],
    device const float*       x    [[buffer(SigmoidForward::x)]],
    constant SigmoidForward&  args [[buffer(SigmoidForward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = sigmoid(x[i]);
}

kernel void sigmoid_backward(
    device float*              dx   [[buffer(SigmoidBackward::dx)]],
    device const float*        dy   [[buffer(SigmoidBackward::dy)]],
    device const float*        x    [[buffer(SigmoidBackward::x)]],
    constant SigmoidBackward&  args [[buffer(SigmoidBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    float slope;
    sigmoid_slope(x[i], slope);
    dx[i] = dy[i] * slope;
}
