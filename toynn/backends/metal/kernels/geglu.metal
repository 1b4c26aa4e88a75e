// GeGLU: gelu of the gate times up, the activation in the middle of a Gemma MLP; in GELU's tanh form, or exact.
//
//   y     = gelu(g) u
//   dgate = dy u gelu'(g)
//   dup   = dy gelu(g)
//
// n elements, one thread each; g is gate, u is up. In place: each output may be one of the inputs.
// Source: Shazeer 2020, arXiv:2002.05202, section 2.
#include "activations.metal"

kernel void geglu_forward(GEGLU_FORWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    y[i] = (args.exact ? gelu_exact(gate[i]) : gelu_tanh(gate[i])) * up[i];
}

kernel void geglu_backward(GEGLU_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float g = gate[i], u = up[i], d = dy[i];
    dgate[i] = d * u * (args.exact ? gelu_exact_slope(g) : gelu_tanh_slope(g));
    dup[i] = d * (args.exact ? gelu_exact(g) : gelu_tanh(g));
}
