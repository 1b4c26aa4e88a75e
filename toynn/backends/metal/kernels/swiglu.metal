// SwiGLU: silu of the gate times up, the activation in the middle of a Llama MLP.
//
//   y     = g s u                        s = 1 / (1 + e^-g)
//   dgate = dy u (s + g s (1 - s))
//   dup   = dy g s
//
// n elements, one thread each; g is gate, u is up. In place: each output may be one of the inputs. halves: N rows
// x of 2 F, of which the first F are gate and the others up; dx may be x.
// Source: Shazeer 2020, arXiv:2002.05202, section 2.

kernel void swiglu_forward(device float*            y    [[buffer(0)]],
                           device const float*      gate [[buffer(1)]],
                           device const float*      up   [[buffer(2)]],
                           constant SwigluForward&  args [[buffer(3)]],
                           uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

kernel void swiglu_backward(device float*             dgate [[buffer(0)]],
                            device float*             dup   [[buffer(1)]],
                            device const float*       dy    [[buffer(2)]],
                            device const float*       gate  [[buffer(3)]],
                            device const float*       up    [[buffer(4)]],
                            constant SwigluBackward&  args  [[buffer(5)]],
                            uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float g = gate[i], u = up[i], d = dy[i];
    float ds;
    const float s = sigmoid_slope(g, ds);
    dgate[i] = d * u * (s + g * ds);
    dup[i] = d * (g * s);
}

kernel void swiglu_halves_forward(device float*                 y    [[buffer(0)]],
                                  device const float*           x    [[buffer(1)]],
                                  constant SwigluHalvesForward& args [[buffer(2)]],
                                  uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.F) return;
    const uint gate = i + i / args.F * args.F;
    y[i] = x[gate] * sigmoid(x[gate]) * x[gate + args.F];
}

kernel void swiglu_halves_backward(device float*                  dx   [[buffer(0)]],
                                   device const float*            dy   [[buffer(1)]],
                                   device const float*            x    [[buffer(2)]],
                                   constant SwigluHalvesBackward& args [[buffer(3)]],
                                   uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.F) return;
    const uint gate = i + i / args.F * args.F, up = gate + args.F;
    const float g = x[gate], u = x[up], d = dy[i];
    float ds;
    const float s = sigmoid_slope(g, ds);
    dx[gate] = d * u * (s + g * ds);
    dx[up] = d * (g * s);
}
