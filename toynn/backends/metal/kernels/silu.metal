// SiLU (swish): x times its sigmoid.
//
//   y  = x s                    s = 1 / (1 + e^-x)
//   dx = dy (s + x s (1 - s))
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, section 2.

kernel void silu_forward(SILU_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = x[i] * sigmoid(x[i]);
}

kernel void silu_backward(SILU_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    float ds;
    const float s = sigmoid_slope(x[i], ds);
    dx[i] = dy[i] * (s + x[i] * ds);
}
