// A soft cap: small values hardly change, and no value exceeds the cap.
//
//   y  = cap tanh(x / cap)
//   dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: Gemma Team 2024, arXiv:2408.00118, section 2.

kernel void softcap_forward(
    device float*             y    [[buffer(SoftcapForward::y)]],
    device const float*       x    [[buffer(SoftcapForward::x)]],
    constant SoftcapForward&  args [[buffer(SoftcapForward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = args.cap * precise::tanh(x[i] / args.cap);
}

kernel void softcap_backward(
    device float*              dx   [[buffer(SoftcapBackward::dx)]],
    device const float*        dy   [[buffer(SoftcapBackward::dy)]],
    device const float*        y    [[buffer(SoftcapBackward::y)]],
    constant SoftcapBackward&  args [[buffer(SoftcapBackward::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float t = y[i] / args.cap;
    dx[i] = dy[i] * ((1.0f - t) * (1.0f + t));
}
