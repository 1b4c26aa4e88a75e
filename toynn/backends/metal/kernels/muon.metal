// Muon: one step on one matrix, along the nearest matrix whose singular values are all near 1.
//
//   momentum  m[i] = beta1 m[i] + g'[i]     u[i] = g'[i] + beta1 m[i]     g'[i] = g[i] scale
//   start     x[i] = u[i] / (sqrt(squares) + 1e-7)
//   mix       y[i] = alpha x[i] + beta z[i]
//   step      w[i] = w[i] (1 - lr weight_decay) - lr factor x[i]
//
// The products between start and step are matmul.metal's. hp = [lr, beta1, ., ., weight_decay, ., .]. If scale is
// not finite, u is 0, and m and w stay untouched. n elements, one thread each. Formulas: muon.pyx.

kernel void muon_momentum(
    device float*          m     [[buffer(MuonMomentum::m)]],
    device float*          u     [[buffer(MuonMomentum::u)]],
    device const float*    g     [[buffer(MuonMomentum::g)]],
    device const float*    hp    [[buffer(MuonMomentum::hp)]],
    device const float*    scale [[buffer(MuonMomentum::scale)]],
    constant MuonMomentum& args  [[buffer(MuonMomentum::args)]],
    uint i [[thread_position_in_grid]])
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

kernel void muon_start(
    device float*       x       [[buffer(MuonStart::x)]],
    device const float* u       [[buffer(MuonStart::u)]],
    device const float* squares [[buffer(MuonStart::squares)]],
    constant MuonStart& args    [[buffer(MuonStart::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) x[i] = u[i] / (precise::sqrt(*squares) + 1e-7f);
}

kernel void muon_mix(
    device float*       y    [[buffer(MuonMix::y)]],
    device const float* x    [[buffer(MuonMix::x)]],
    device const float* z    [[buffer(MuonMix::z)]],
    constant MuonMix&   args [[buffer(MuonMix::args)]],
    uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = args.alpha * x[i] + args.beta * z[i];
}

kernel void muon_step(
    device float*       w     [[buffer(MuonStep::w)]],
    device const float* x     [[buffer(MuonStep::x)]],
    device const float* hp    [[buffer(MuonStep::hp)]],
    device const float* scale [[buffer(MuonStep::scale)]],
    constant MuonStep&  args  [[buffer(MuonStep::args)]],
    uint i [[thread_position_in_grid]])
{
    const float factor = *scale;
    if (i >= args.n || isnan(factor) || isinf(factor)) return;
    w[i] = w[i] * (1.0f - hp[0] * hp[4]) - hp[0] * args.factor * x[i];
}
