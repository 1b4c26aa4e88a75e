// GELU: x times the chance that a standard normal number is below x, exactly or by its tanh form.
//
//   exact   y = x P(x)        P(x) = (1 + erf(x / sqrt 2)) / 2
//           dx = dy (P(x) + x p(x))       p(x) = e^(-x^2 / 2) / sqrt(2 pi)
//   tanh    y = x s(u)        s(u) = 1 / (1 + e^-u),  u = sqrt(8 / pi) (x + 0.044715 x^3)
//           dx = dy (s + x s (1 - s) u')  u' = sqrt(8 / pi) (1 + 0.134145 x^2)
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
#include "activations.metal"

kernel void gelu_forward(GELU_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = args.exact ? gelu_exact(x[i]) : gelu_tanh(x[i]);
}

kernel void gelu_backward(GELU_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    dx[i] = dy[i] * (args.exact ? gelu_exact_slope(x[i]) : gelu_tanh_slope(x[i]));
}
