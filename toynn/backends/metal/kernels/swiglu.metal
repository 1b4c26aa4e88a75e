// SwiGLU: silu of the gate times up, the activation in the middle of a Llama MLP.
//
//   y     = g s u                        s = 1 / (1 + e^-g)
//   dgate = dy u (s + g s (1 - s))
//   dup   = dy g s
//
// With a limit m (0: none), y = g' s (u' + 1), g' = min(g, m), u' = u within -m .. m, s = 1 / (1 + e^(-alpha g')).
// n elements, one thread each; g is gate, u is up. In place: each output may be one of the inputs. The halves entries
// take x, N rows of 2 F: first gate, then up. dx may be x.
// Source: Shazeer 2020, arXiv:2002.05202, section 2.

// The smaller one; NaN stays NaN.
static inline float at_most(float x, float limit) { return x > limit ? limit : x; }

kernel void swiglu_forward(SWIGLU_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    if (args.limit > 0.0f) {
        const float g = at_most(gate[i], args.limit);
        y[i] = g * sigmoid(args.alpha * g) * (-at_most(-at_most(up[i], args.limit), args.limit) + 1.0f);
        return;
    }
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

kernel void swiglu_backward(SWIGLU_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float g = gate[i], u = up[i], d = dy[i];
    float ds;
    if (args.limit > 0.0f) {
        const float h = at_most(g, args.limit), v = -at_most(-at_most(u, args.limit), args.limit);
        const float s = sigmoid_slope(args.alpha * h, ds);
        dgate[i] = g > args.limit ? 0.0f : d * (v + 1.0f) * (s + args.alpha * h * ds);
        dup[i] = fabs(u) > args.limit ? 0.0f : d * (h * s);
        return;
    }
    const float s = sigmoid_slope(g, ds);
    dgate[i] = d * u * (s + g * ds);
    dup[i] = d * (g * s);
}

kernel void swiglu_halves_forward(SWIGLU_HALVES_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.F) return;
    const uint gate = i + i / args.F * args.F;
    y[i] = x[gate] * sigmoid(x[gate]) * x[gate + args.F];
}

kernel void swiglu_halves_backward(SWIGLU_HALVES_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.N * args.F) return;
    const uint gate = i + i / args.F * args.F, up = gate + args.F;
    const float g = x[gate], u = x[up], d = dy[i];
    float ds;
    const float s = sigmoid_slope(g, ds);
    dx[gate] = d * u * (s + g * ds);
    dx[up] = d * (g * s);
}
