// AltUp: A streams of a token; a block computes one of them, and predicts and corrects the others.
//
//   y[n,i,c] = x[n,i,c] + sum_j w[n,iA+j] x[n,j,c]                       predict
//   y[n,i,c] = p[n,i,c] + (1 + w[n,i]) e[n,c] + [i > 0] f[n,c]           correct
//              e[n,c] = a[n,c] - p[n,0,c]
//   y[n,c]   = z[n,c] s[n]      s = sqrt(q / max(m, floor))              rescale
//              q = mean_c x[n,c]^2,  m = mean_c z[n,c]^2
//
//   dx[n,j,c] = dy[n,j,c] + sum_i w[n,iA+j] dy[n,i,c]                    predict_backward
//   dw[n,iA+j] = sum_c dy[n,i,c] x[n,j,c]
//   da[n,c]   = sum_i (1 + w[n,i]) dy[n,i,c]                             correct_backward
//   dp[n,i,c] = dy[n,i,c] - [i = 0] da[n,c]
//   dw[n,i]   = sum_c dy[n,i,c] e[n,c],  df[n,c] = sum_{i>0} dy[n,i,c]
//   dz[n,c]   = s dy[n,c] - [m > floor] z[n,c] g s / (m C)               rescale_backward
//   dx[n,c]   = x[n,c] g / (C sqrt(q max(m, floor)))     g = sum_c dy z
//
// A thread for each number, of da for a column of all streams; a line of threads for each dw; a group for each row
// that is scaled. Outputs are overwritten. Source: Baykal et al. 2023, arXiv:2301.13310, algorithm 1.

kernel void altup_predict(ALTUP_PREDICT, uint at [[thread_position_in_grid]])
{
    const uint A = args.A, C = args.C;
    if (at >= args.N * A * C) return;
    const uint row = at / C, n = row / A, c = at % C;
    float sum = x[at];
    for (uint j = 0; j < A; ++j) sum = fma(w[row * A + j], x[(n * A + j) * C + c], sum);
    y[at] = sum;
}

kernel void altup_predict_backward_x(ALTUP_PREDICT_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint A = args.A, C = args.C;
    if (at >= args.N * A * C) return;
    const uint row = at / C, n = row / A, j = row % A, c = at % C;
    float sum = dy[at];
    for (uint i = 0; i < A; ++i) sum = fma(w[(n * A + i) * A + j], dy[(n * A + i) * C + c], sum);
    dx[at] = sum;
}

kernel void altup_predict_backward_w(
    ALTUP_PREDICT_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint A = args.A, C = args.C, at = group * (GROUP / LINE) + tid / LINE;
    const bool own = at < args.N * A * A;
    float sum = 0.0f;
    if (own) {
        const uint row = at / A, other = row / A * A + at % A;
        for (uint c = tid % LINE; c < C; c += LINE) sum = fma(dy[row * C + c], x[other * C + c], sum);
    }
    sum = line_sum(sum, part, tid);
    if (own && tid % LINE == 0) dw[at] = sum;
}

kernel void altup_correct(ALTUP_CORRECT, uint at [[thread_position_in_grid]])
{
    const uint A = args.A, C = args.C;
    if (at >= args.N * A * C) return;
    const uint row = at / C, n = row / A, c = at % C;
    const float sum = fma(1.0f + w[row], a[n * C + c] - p[n * A * C + c], p[at]);
    y[at] = args.has_f && row % A > 0 ? sum + f[n * C + c] : sum;
}

kernel void altup_correct_backward_x(ALTUP_CORRECT_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint A = args.A, C = args.C;
    if (at >= args.N * C) return;
    const uint n = at / C, first = n * A * C + at % C;
    float sum = 0.0f, others = 0.0f;
    for (uint i = 0; i < A; ++i) {
        const float d = dy[first + i * C];
        sum = fma(1.0f + w[n * A + i], d, sum);
        others += i > 0 ? d : 0.0f;
        if (i > 0) dp[first + i * C] = d;
    }
    if (A > 0) dp[first] = dy[first] - sum;
    da[at] = sum;
    if (args.has_df) df[at] = others;
}

kernel void altup_correct_backward_w(
    ALTUP_CORRECT_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint A = args.A, C = args.C, row = group * (GROUP / LINE) + tid / LINE;
    const bool own = row < args.N * A;
    float sum = 0.0f;
    if (own) {
        const uint n = row / A;
        for (uint c = tid % LINE; c < C; c += LINE) {
            sum = fma(dy[row * C + c], a[n * C + c] - p[n * A * C + c], sum);
        }
    }
    sum = line_sum(sum, part, tid);
    if (own && tid % LINE == 0) dw[row] = sum;
}

kernel void altup_rescale(
    ALTUP_RESCALE, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C;
    if (n >= args.N) return;
    z += n * C;
    x += n * C;
    float own = 0.0f, wanted = 0.0f;
    for (uint c = tid; c < C; c += GROUP) {
        own = fma(z[c], z[c], own);
        wanted = fma(x[c], x[c], wanted);
    }
    own = group_sum(own, part, tid) / max(C, 1u);
    wanted = group_sum(wanted, part, tid) / max(C, 1u);
    const float s = precise::sqrt(wanted / (own < args.floor ? args.floor : own));
    for (uint c = tid; c < C; c += GROUP) y[n * C + c] = z[c] * s;
}

kernel void altup_rescale_backward(
    ALTUP_RESCALE_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint C = args.C;
    if (n >= args.N) return;
    z += n * C;
    x += n * C;
    dy += n * C;
    float own = 0.0f, wanted = 0.0f, dot = 0.0f;
    for (uint c = tid; c < C; c += GROUP) {
        own = fma(z[c], z[c], own);
        wanted = fma(x[c], x[c], wanted);
        dot = fma(dy[c], z[c], dot);
    }
    own = group_sum(own, part, tid) / max(C, 1u);
    wanted = group_sum(wanted, part, tid) / max(C, 1u);
    dot = group_sum(dot, part, tid) / max(C, 1u);
    const float s = precise::sqrt(wanted / (own < args.floor ? args.floor : own));
    const float across = own < args.floor ? 0.0f : dot * s / own;
    const float along = wanted == 0.0f ? 0.0f : dot * s / wanted;
    for (uint c = tid; c < C; c += GROUP) {
        dz[n * C + c] = s * dy[c] - z[c] * across;
        dx[n * C + c] = x[c] * along;
    }
}
