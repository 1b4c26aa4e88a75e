// Sigmoid: a score between 0 and 1 for each element. Some routers use it instead of softmax.
//
//   y  = s                      s = 1 / (1 + e^-x)
//   dx = dy s (1 - s)
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.

kernel void sigmoid_forward(SIGMOID_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = sigmoid(x[i]);
}

kernel void sigmoid_backward(SIGMOID_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    float slope;
    sigmoid_slope(x[i], slope);
    dx[i] = dy[i] * slope;
}
