// The decay of a head's state at each row, as a logarithm: see delta.metal.
//
//   y[n,v]  = w[v] p                     p = log(1 + e^(x[n,v] + b[v])),  w < 0
//
//   dx[n,v] = dy w[v] s                  s = 1 / (1 + e^-(x[n,v] + b[v]))
//   dw[v]   = sum_n dy[n,v] p            db[v] = sum_n dx[n,v]
//
// A thread for each number of N rows of V heads; for dw and db a thread for each head, over all rows.
// Source: Dao & Gu 2024, Mamba-2, arXiv:2405.21060.

// log(1 + e^x). If e^-|x| is small, the digits that 1 + e^-|x| rounds away are put back.
static inline float softplus(float x) {
    const float e = precise::exp(-fabs(x)), sum = 1.0f + e;
    const float rest = sum == 1.0f ? e : precise::log(sum) * (e / (sum - 1.0f));
    return x > 0.0f ? x + rest : rest;
}

kernel void decay_forward(DECAY_FORWARD, uint at [[thread_position_in_grid]])
{
    if (at >= args.N * args.V) return;
    const uint v = at % args.V;
    y[at] = w[v] * softplus(x[at] + b[v]);
}

kernel void decay_backward_x(DECAY_BACKWARD, uint at [[thread_position_in_grid]])
{
    if (at >= args.N * args.V) return;
    const uint v = at % args.V;
    dx[at] = dy[at] * w[v] * sigmoid(x[at] + b[v]);
}

kernel void decay_backward_w(DECAY_BACKWARD, uint v [[thread_position_in_grid]])
{
    if (v >= args.V) return;
    float of_w = args.has_dw && args.accumulate ? dw[v] : 0.0f;
    float of_b = args.has_db && args.accumulate ? db[v] : 0.0f;
    for (uint n = 0; n < args.N; ++n) {
        const uint at = n * args.V + v;
        of_b += dx[at];
        of_w += dy[at] * softplus(x[at] + b[v]);
    }
    if (args.has_dw) dw[v] = of_w;
    if (args.has_db) db[v] = of_b;
}
