// Grouped products: each expert's matrix times the rows that were sent to it.
//
//   forward           y[r,n]    = sum_k x[r,k] w[e,n,k] + b[e,n]
//   backward_input    dx[r,k]   = sum_n dy[r,n] w[e,n,k]
//   backward_weight   dw[e,n,k] = sum_r dy[r,n] x[r,k]
//   backward_bias     db[e,n]   = sum_r dy[r,n]            offsets[e] <= r < offsets[e+1]
//
// M rows, sorted by expert, of which the first offsets[E] are there; E experts of N outputs and K inputs. w
// may be stored in blocks of any type of blocks.metal, of which a thread expands RUN elements at a time. A
// thread for each result, or for RUN of dx; all sums are float32, whatever the precision.
// Source: Gale et al. 2022, MegaBlocks, arXiv:2211.15841, section 4.

// The expert of row r; E if the row is nobody's.
static inline uint expert_of(device const int* offsets, uint E, uint r) {
    uint e = 0;
    while (e < E && uint(offsets[e + 1]) <= r) ++e;
    return e;
}

kernel void experts_forward(device float*             y       [[buffer(0)]],
                            device const float*       x       [[buffer(1)]],
                            device const uchar*       w       [[buffer(2)]],
                            device const float*       b       [[buffer(3)]],
                            device const int*         offsets [[buffer(4)]],
                            constant ExpertsForward&  args    [[buffer(5)]],
                            uint at [[thread_position_in_grid]])
{
    const uint N = args.N, K = args.K;
    if (at >= args.M * N) return;
    const uint r = at / N, n = at % N, e = expert_of(offsets, args.E, r);
    if (e == args.E) return;
    float sum = 0.0f, run[RUN];
    for (uint k = 0; k < K; k += RUN) {
        float part = 0.0f;
        expand(run, w, args.type, e * N + n, K, k);
        for (uint i = 0; i < min(RUN, K - k); ++i) part = fma(x[r * K + k + i], run[i], part);
        sum += part;
    }
    y[at] = args.has_b ? sum + b[e * N + n] : sum;
}

kernel void experts_backward_input(device float*                   dx      [[buffer(0)]],
                                   device const float*             dy      [[buffer(1)]],
                                   device const uchar*             w       [[buffer(2)]],
                                   device const int*               offsets [[buffer(3)]],
                                   constant ExpertsBackwardInput&  args    [[buffer(4)]],
                                   uint at [[thread_position_in_grid]])
{
    const uint N = args.N, K = args.K, runs = (K + RUN - 1) / RUN;
    if (at >= args.M * runs) return;
    const uint r = at / runs, k = at % runs * RUN, e = expert_of(offsets, args.E, r);
    if (e == args.E) return;
    float sums[RUN], run[RUN];
    for (uint i = 0; i < RUN; ++i) sums[i] = 0.0f;
    for (uint n = 0; n < N; ++n) {
        expand(run, w, args.type, e * N + n, K, k);
        for (uint i = 0; i < RUN; ++i) sums[i] = fma(dy[r * N + n], run[i], sums[i]);
    }
    for (uint i = 0; i < min(RUN, K - k); ++i) {
        const uint to = r * K + k + i;
        dx[to] = args.accumulate ? dx[to] + sums[i] : sums[i];
    }
}

kernel void experts_backward_weight(device float*                    dw      [[buffer(0)]],
                                    device const float*              dy      [[buffer(1)]],
                                    device const float*              x       [[buffer(2)]],
                                    device const int*                offsets [[buffer(3)]],
                                    constant ExpertsBackwardWeight&  args    [[buffer(4)]],
                                    uint at [[thread_position_in_grid]])
{
    const uint N = args.N, K = args.K;
    if (at >= args.E * N * K) return;
    const uint e = at / (N * K), n = at / K % N, k = at % K;
    float sum = 0.0f;
    for (uint r = uint(offsets[e]); r < min(uint(offsets[e + 1]), args.M); ++r) {
        sum = fma(dy[r * N + n], x[r * K + k], sum);
    }
    dw[at] = args.accumulate ? dw[at] + sum : sum;
}

kernel void experts_backward_bias(device float*                  db      [[buffer(0)]],
                                  device const float*            dy      [[buffer(1)]],
                                  device const int*              offsets [[buffer(2)]],
                                  constant ExpertsBackwardBias&  args    [[buffer(3)]],
                                  uint at [[thread_position_in_grid]])
{
    const uint N = args.N;
    if (at >= args.E * N) return;
    const uint e = at / N, n = at % N;
    float sum = args.accumulate ? db[at] : 0.0f;
    for (uint r = uint(offsets[e]); r < min(uint(offsets[e + 1]), args.M); ++r) sum += dy[r * N + n];
    db[at] = sum;
}
