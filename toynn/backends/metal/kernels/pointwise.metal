// Arithmetic and functions of one number, and their slopes.
//
//   sub     y = a - b                       mul     y = a b
//   div     y = a / b                       div_backward     db = -dy y / b
//   affine  y = alpha x + beta
//   square  y = x^2                         square_backward  dx = 2 x dy
//   power   y = x^p                         power_backward   dx = p x^(p-1) dy
//   exp     y = e^x                         log              y = ln x
//   sqrt    y = x^(1/2)                     sqrt_backward    dx = dy / (2 y)
//   tanh    y = tanh x                      tanh_backward    dx = (1 - y^2) dy
//   abs     y = |x|                         abs_backward     dx = sign(x) dy
//   relu    y = max(x, 0)                   relu_backward    dx = dy if y > 0, else 0
//   masked  y = x if (mask != 0) = keep, else 0
//
// n elements, one thread each. In place: a thread reads its own elements before it writes. Metal's pow has no
// numbers below 0: their sign is that of (-1)^p. Formulas: pointwise.pyx.

static inline float power(float x, float p)
{
    if (!(x < 0.0f)) return precise::pow(x, p);
    const float half = p * 0.5f;
    const bool whole = p == rint(p), even = half == rint(half);
    const float y = precise::pow(-x, p);
    return whole ? (even ? y : -y) : NAN;
}

kernel void pointwise_sub(POINTWISE_SUB, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] - b[i];
}

kernel void pointwise_mul(POINTWISE_MUL, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] * b[i];
}

kernel void pointwise_div(POINTWISE_DIV, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] / b[i];
}

kernel void pointwise_div_backward(POINTWISE_DIV_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) db[i] = -dy[i] * y[i] / b[i];
}

kernel void pointwise_affine(POINTWISE_AFFINE, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = args.alpha * x[i] + args.beta;
}

kernel void pointwise_square(POINTWISE_SQUARE, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = x[i] * x[i];
}

kernel void pointwise_square_backward(POINTWISE_SQUARE_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = 2 * x[i] * dy[i];
}

kernel void pointwise_power(POINTWISE_POWER, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = power(x[i], args.p);
}

kernel void pointwise_power_backward(POINTWISE_POWER_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = args.p * power(x[i], args.p - 1) * dy[i];
}

kernel void pointwise_exp(POINTWISE_EXP, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::exp(x[i]);
}

kernel void pointwise_log(POINTWISE_LOG, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::log(x[i]);
}

kernel void pointwise_sqrt(POINTWISE_SQRT, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::sqrt(x[i]);
}

kernel void pointwise_sqrt_backward(POINTWISE_SQRT_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] / (2 * y[i]);
}

kernel void pointwise_tanh(POINTWISE_TANH, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::tanh(x[i]);
}

kernel void pointwise_tanh_backward(POINTWISE_TANH_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] * ((1 - y[i]) * (1 + y[i]));
}

kernel void pointwise_abs(POINTWISE_ABS, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = fabs(x[i]);
}

kernel void pointwise_abs_backward(POINTWISE_ABS_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] * float((x[i] > 0) - (x[i] < 0));
}

kernel void pointwise_relu(POINTWISE_RELU, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = x[i] < 0 ? 0.0f : x[i];
}

kernel void pointwise_relu_backward(POINTWISE_RELU_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = y[i] > 0 ? dy[i] : 0.0f;
}

kernel void pointwise_masked(POINTWISE_MASKED, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = (mask[i] != 0) == (args.keep != 0) ? x[i] : 0.0f;
}
