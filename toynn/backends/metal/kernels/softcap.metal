// A soft cap: small values hardly change, and no value exceeds the cap.
//
//   y  = cap tanh(x / cap)
//   dx = dy (1 - t^2)                    t = y / cap = tanh(x / cap)
//
// n elements, one thread each. In place: y may be x, dx may be dy.
// Source: Gemma Team 2024, arXiv:2408.00118, section 2.

kernel void softcap_forward(SOFTCAP_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = args.cap * precise::tanh(x[i] / args.cap);
}

kernel void softcap_backward(SOFTCAP_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float t = y[i] / args.cap;
    dx[i] = dy[i] * ((1.0f - t) * (1.0f + t));
}
