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

kernel void pointwise_sub(
    device float*           y    [[buffer(PointwiseSub::y)]],
    device const float*     a    [[buffer(PointwiseSub::a)]],
    device const float*     b    [[buffer(PointwiseSub::b)]],
    constant PointwiseSub&  args [[buffer(PointwiseSub::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] - b[i];
}

kernel void pointwise_mul(
    device float*           y    [[buffer(PointwiseMul::y)]],
    device const float*     a    [[buffer(PointwiseMul::a)]],
    device const float*     b    [[buffer(PointwiseMul::b)]],
    constant PointwiseMul&  args [[buffer(PointwiseMul::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] * b[i];
}

kernel void pointwise_div(
    device float*           y    [[buffer(PointwiseDiv::y)]],
    device const float*     a    [[buffer(PointwiseDiv::a)]],
    device const float*     b    [[buffer(PointwiseDiv::b)]],
    constant PointwiseDiv&  args [[buffer(PointwiseDiv::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] / b[i];
}

kernel void pointwise_div_backward(
    device float*                   db   [[buffer(PointwiseDivBackward::db)]],
    device const float*             dy   [[buffer(PointwiseDivBackward::dy)]],
    device const float*             y    [[buffer(PointwiseDivBackward::y)]],
    device const float*             b    [[buffer(PointwiseDivBackward::b)]],
    constant PointwiseDivBackward&  args [[buffer(PointwiseDivBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) db[i] = -dy[i] * y[i] / b[i];
}

kernel void pointwise_affine(
    device float*              y    [[buffer(PointwiseAffine::y)]],
    device const float*        x    [[buffer(PointwiseAffine::x)]],
    constant PointwiseAffine&  args [[buffer(PointwiseAffine::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = args.alpha * x[i] + args.beta;
}

kernel void pointwise_square(
    device float*              y    [[buffer(PointwiseSquare::y)]],
    device const float*        x    [[buffer(PointwiseSquare::x)]],
    constant PointwiseSquare&  args [[buffer(PointwiseSquare::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = x[i] * x[i];
}

kernel void pointwise_square_backward(
    device float*                      dx   [[buffer(PointwiseSquareBackward::dx)]],
    device const float*                dy   [[buffer(PointwiseSquareBackward::dy)]],
    device const float*                x    [[buffer(PointwiseSquareBackward::x)]],
    constant PointwiseSquareBackward&  args [[buffer(PointwiseSquareBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = 2 * x[i] * dy[i];
}

kernel void pointwise_power(
    device float*             y    [[buffer(PointwisePower::y)]],
    device const float*       x    [[buffer(PointwisePower::x)]],
    constant PointwisePower&  args [[buffer(PointwisePower::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = power(x[i], args.p);
}

kernel void pointwise_power_backward(
    device float*                     dx   [[buffer(PointwisePowerBackward::dx)]],
    device const float*               dy   [[buffer(PointwisePowerBackward::dy)]],
    device const float*               x    [[buffer(PointwisePowerBackward::x)]],
    constant PointwisePowerBackward&  args [[buffer(PointwisePowerBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = args.p * power(x[i], args.p - 1) * dy[i];
}

kernel void pointwise_exp(
    device float*           y    [[buffer(PointwiseExp::y)]],
    device const float*     x    [[buffer(PointwiseExp::x)]],
    constant PointwiseExp&  args [[buffer(PointwiseExp::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::exp(x[i]);
}

kernel void pointwise_log(
    device float*           y    [[buffer(PointwiseLog::y)]],
    device const float*     x    [[buffer(PointwiseLog::x)]],
    constant PointwiseLog&  args [[buffer(PointwiseLog::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::log(x[i]);
}

kernel void pointwise_sqrt(
    device float*            y    [[buffer(PointwiseSqrt::y)]],
    device const float*      x    [[buffer(PointwiseSqrt::x)]],
    constant PointwiseSqrt&  args [[buffer(PointwiseSqrt::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::sqrt(x[i]);
}

kernel void pointwise_sqrt_backward(
    device float*                    dx   [[buffer(PointwiseSqrtBackward::dx)]],
    device const float*              dy   [[buffer(PointwiseSqrtBackward::dy)]],
    device const float*              y    [[buffer(PointwiseSqrtBackward::y)]],
    constant PointwiseSqrtBackward&  args [[buffer(PointwiseSqrtBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] / (2 * y[i]);
}

kernel void pointwise_tanh(
    device float*            y    [[buffer(PointwiseTanh::y)]],
    device const float*      x    [[buffer(PointwiseTanh::x)]],
    constant PointwiseTanh&  args [[buffer(PointwiseTanh::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = precise::tanh(x[i]);
}

kernel void pointwise_tanh_backward(
    device float*                    dx   [[buffer(PointwiseTanhBackward::dx)]],
    device const float*              dy   [[buffer(PointwiseTanhBackward::dy)]],
    device const float*              y    [[buffer(PointwiseTanhBackward::y)]],
    constant PointwiseTanhBackward&  args [[buffer(PointwiseTanhBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] * ((1 - y[i]) * (1 + y[i]));
}

kernel void pointwise_abs(
    device float*           y    [[buffer(PointwiseAbs::y)]],
    device const float*     x    [[buffer(PointwiseAbs::x)]],
    constant PointwiseAbs&  args [[buffer(PointwiseAbs::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = fabs(x[i]);
}

kernel void pointwise_abs_backward(
    device float*                   dx   [[buffer(PointwiseAbsBackward::dx)]],
    device const float*             dy   [[buffer(PointwiseAbsBackward::dy)]],
    device const float*             x    [[buffer(PointwiseAbsBackward::x)]],
    constant PointwiseAbsBackward&  args [[buffer(PointwiseAbsBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = dy[i] * float((x[i] > 0) - (x[i] < 0));
}

kernel void pointwise_relu(
    device float*            y    [[buffer(PointwiseRelu::y)]],
    device const float*      x    [[buffer(PointwiseRelu::x)]],
    constant PointwiseRelu&  args [[buffer(PointwiseRelu::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = x[i] < 0 ? 0.0f : x[i];
}

kernel void pointwise_relu_backward(
    device float*                    dx   [[buffer(PointwiseReluBackward::dx)]],
    device const float*              dy   [[buffer(PointwiseReluBackward::dy)]],
    device const float*              y    [[buffer(PointwiseReluBackward::y)]],
    constant PointwiseReluBackward&  args [[buffer(PointwiseReluBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) dx[i] = y[i] > 0 ? dy[i] : 0.0f;
}

kernel void pointwise_masked(
    device float*              y    [[buffer(PointwiseMasked::y)]],
    device const float*        x    [[buffer(PointwiseMasked::x)]],
    device const int*          mask [[buffer(PointwiseMasked::mask)]],
    constant PointwiseMasked&  args [[buffer(PointwiseMasked::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = (mask[i] != 0) == (args.keep != 0) ? x[i] : 0.0f;
}
