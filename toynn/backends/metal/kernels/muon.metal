// Muon: one step on one matrix, along the nearest matrix whose singular values are all near 1.
//
//   momentum  m[i] = beta1 m[i] + g'[i]     u[i] = g'[i] + beta1 m[i]     g'[i] = g[i] scale
//   start     x[i] = u[i] / (sqrt(squares) + 1e-7)
//   mix       y[i] = alpha x[i] + beta z[i]
//   step      w[i] = w[i] (1 - lr weight_decay) - lr factor x[i]
//
// The products between start and step are matmul.metal's. hp = [lr, beta1, ., ., weight_decay, ., .]. If scale is
// not finite, u is 0, and m and w stay untouched. n elements, one thread each. Formulas: muon.pyx.

kernel void muon_momentum(MUON_MOMENTUM, uint i [[thread_position_in_grid]])
{
    if (i >= args.n) return;
    const float factor = *scale;
    if (isnan(factor) || isinf(factor)) {
        u[i] = 0;
        return;
    }
    const float grad = g[i] * factor;
    m[i] = hp[1] * m[i] + grad;
    u[i] = grad + hp[1] * m[i];
}

kernel void muon_start(MUON_START, uint i [[thread_position_in_grid]])
{
    if (i < args.n) x[i] = u[i] / (precise::sqrt(*squares) + 1e-7f);
}

kernel void muon_mix(MUON_MIX, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = args.alpha * x[i] + args.beta * z[i];
}

kernel void muon_step(MUON_STEP, uint i [[thread_position_in_grid]])
{
    const float factor = *scale;
    if (i >= args.n || isnan(factor) || isinf(factor)) return;
    w[i] = w[i] * (1.0f - hp[0] * hp[4]) - hp[0] * args.factor * x[i];
}
