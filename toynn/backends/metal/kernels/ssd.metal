// A selective state space (Mamba 2).
//
//   S_t = e^(a p[t]) S_{t-1} + b[t] (p[t] x[t])^T        y[t] = S_t^T c[t] + s x[t]
//   p[t] = log(1 + e^(dt[t] + bias))
//
// for each of V heads of E columns; S (D,E) is 0 where a sequence begins. A row of x has x of V heads of E, b of G
// groups of D, and c of G groups of D. Head h reads group h G / V. Backward goes from the last row to the first,
// with R = dL/dS_t:
//
//   R  += c dy^T             dc = S_t dy          db = R (p x)         dx = p R^T b + s dy
//   g   = <R, e^(a p) S_{t-1}>                    dp = x . R^T b + a g        R <- e^(a p) R
//   da  = sum_t p g          ds = sum_t dy . x    ddt = dp / (1 + e^-(dt + bias)), dbias its sum
//
// The rows are computed one by one: the chunks of ssd.pyx only pay with a CPU's caches and tiles of products.
// forward, cached: a thread for each column of a state; no other thread uses that column. backward: the same for S
// before each CHUNK rows; then a group for each group of heads, which takes its heads one by one. For sums over the
// rows of a state a thread has columns; for sums over columns it has rows. Formulas: ssd.pyx. Source: Dao & Gu
// 2024, arXiv:2405.21060.

constant constexpr uint CHUNK = 64;

// log(1 + e^x)
static inline float softplus(float x) {
    const float e = precise::exp(-fabs(x));
    return max(x, 0.0f) + (e < 1e-4f ? e : precise::log(1.0f + e));
}

// Whether a row is the first one of its sequence or segment.
static inline bool begins(device const int* first, bool has_first, uint row, uint T) {
    return has_first ? uint(first[row]) == row : row % T == 0;
}

// Advance a column of a state, whose numbers are E apart, by one row; return S^T c of the column.
static inline float advance(device float* after, device const float* before, bool fresh, device const float* b,
                            device const float* c, float u, float kept, uint D, uint E) {
    float y = 0.0f;
    for (uint i = 0; i < D; ++i) {
        const float s = fma(b[i], u, fresh ? 0.0f : kept * before[i * E]);
        after[i * E] = s;
        y = fma(s, c[i], y);
    }
    return y;
}

kernel void ssd_forward(SSD_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, V = args.V, E = args.E, G = args.G, D = args.D;
    if (at >= args.B * V * E) return;
    const uint e = at % E, h = at / E % V, b = at / E / V;
    device float* state = scratch + (b * V + h) * D * E + e;
    for (uint n = b * T; n < (b + 1) * T; ++n) {
        device const float* row = x + n * args.X;
        device const float* of_b = row + V * E + h * G / V * D;
        const float p = softplus(dt[n * V + h] + bias[h]), own = row[h * E + e];
        const float read = advance(state, state, begins(first, args.has_first, n, T), of_b, of_b + G * D, p * own,
                                   precise::exp(a[h] * p), D, E);
        y[(n * V + h) * E + e] = fma(skip[h], own, read);
    }
}

kernel void ssd_cached(SSD_CACHED, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, V = args.V, E = args.E, G = args.G, D = args.D;
    if (at >= args.B * V * E) return;
    const uint e = at % E, h = at / E % V, b = at / E / V;
    state += (b * V + h) * D * E + e;
    if (past[b] == 0) {
        for (uint i = 0; i < D; ++i) state[i * E] = 0.0f;
    }
    for (uint t = 0; t < T; ++t) {
        const uint n = b * T + t;
        device float* out = y + (n * V + h) * E + e;
        if (t >= uint(count[b])) {
            out[0] = 0.0f;
            continue;
        }
        device const float* row = x + n * args.X;
        device const float* of_b = row + V * E + h * G / V * D;
        const float p = softplus(dt[n * V + h] + bias[h]), own = row[h * E + e];
        const float read = advance(state, state, false, of_b, of_b + G * D, p * own, precise::exp(a[h] * p), D, E);
        out[0] = fma(skip[h], own, read);
    }
}

// S before each CHUNK rows: (B,V,chunks,D,E), the first part of scratch.
kernel void ssd_backward_states(SSD_BACKWARD, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, V = args.V, E = args.E, G = args.G, D = args.D, S = (T + CHUNK - 1) / CHUNK;
    if (at >= args.B * V * E || T == 0) return;
    const uint e = at % E, h = at / E % V, b = at / E / V;
    device float* saved = scratch + (b * V + h) * S * D * E + e;
    for (uint i = 0; i < D; ++i) saved[i * E] = 0.0f;
    for (uint t = 0; t < (S - 1) * CHUNK; ++t) {
        const uint n = b * T + t;
        device const float* row = x + n * args.X;
        device const float* of_b = row + V * E + h * G / V * D;
        device float* state = saved + (t / CHUNK + 1) * D * E;
        const float p = softplus(dt[n * V + h] + bias[h]);
        advance(state, t % CHUNK ? state : state - D * E, begins(first, args.has_first, n, T), of_b, of_b + G * D,
                p * row[h * E + e], precise::exp(a[h] * p), D, E);
    }
}

kernel void ssd_backward(
    SSD_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint T = args.T, V = args.V, E = args.E, G = args.G, D = args.D, X = args.X, size = D * E;
    const uint S = (T + CHUNK - 1) / CHUNK, N = args.B * T, j = group % G, b = group / G;
    if (b >= args.B) return;
    device float* forgotten = scratch + args.B * V * S * size;  // g of each row and head, then dy . x
    device float* room = forgotten + 2 * N * V + group * (CHUNK + 2) * size;
    device float* R = room + (CHUNK + 1) * size;
    for (uint n = b * T; n < (b + 1) * T; ++n) {
        for (uint i = tid; i < D; i += GROUP) {
            dx[n * X + V * E + j * D + i] = 0.0f;
            dx[n * X + V * E + (G + j) * D + i] = 0.0f;
        }
    }
    for (uint h = j * V / G; h < (j + 1) * V / G; ++h) {
        for (uint at = tid; at < size; at += GROUP) R[at] = 0.0f;
        for (uint chunk = S; chunk > 0; --chunk) {
            const uint begin = (chunk - 1) * CHUNK, end = min(begin + CHUNK, T);
            device const float* saved = scratch + ((b * V + h) * S + chunk - 1) * size;
            threadgroup_barrier(mem_flags::mem_device);
            for (uint e = tid; e < E; e += GROUP) {
                for (uint i = 0; i < D; ++i) room[i * E + e] = saved[i * E + e];
                for (uint t = begin; t < end; ++t) {
                    const uint n = b * T + t;
                    device float* before = room + (t - begin) * size + e;
                    device const float* of_b = x + n * X + V * E + j * D;
                    const float p = softplus(dt[n * V + h] + bias[h]);
                    advance(before + size, before, begins(first, args.has_first, n, T), of_b, of_b + G * D,
                            p * x[n * X + h * E + e], precise::exp(a[h] * p), D, E);
                }
            }
            for (uint t = end; t > begin; --t) {
                const uint n = b * T + t - 1;
                device const float* before = room + (t - 1 - begin) * size;
                device const float* after = before + size;
                device const float* of_b = x + n * X + V * E + j * D;
                device const float* of_c = of_b + G * D;
                device const float* own = x + n * X + h * E;
                device const float* out = dy + (n * V + h) * E;
                const float p = softplus(dt[n * V + h] + bias[h]);
                const float kept = begins(first, args.has_first, n, T) ? 0.0f : precise::exp(a[h] * p);
                float dp = 0.0f, passed = 0.0f;
                for (uint e = tid; e < E; e += GROUP) {
                    float written = 0.0f;
                    for (uint i = 0; i < D; ++i) {
                        const float r = fma(of_c[i], out[e], R[i * E + e]);
                        R[i * E + e] = r;
                        written = fma(r, of_b[i], written);
                    }
                    dx[n * X + h * E + e] = fma(p, written, skip[h] * out[e]);
                    dp = fma(written, own[e], dp);
                    passed = fma(out[e], own[e], passed);
                }
                dp = group_sum(dp, part, tid);
                passed = group_sum(passed, part, tid);
                threadgroup_barrier(mem_flags::mem_device);
                float g = 0.0f;
                for (uint i = tid; i < D; i += GROUP) {
                    float db = 0.0f, dc = 0.0f;
                    for (uint e = 0; e < E; ++e) {
                        const float r = R[i * E + e];
                        dc = fma(after[i * E + e], out[e], dc);
                        db = fma(r, p * own[e], db);
                        g = fma(r, kept == 0.0f ? 0.0f : kept * before[i * E + e], g);
                        R[i * E + e] = kept * r;
                    }
                    dx[n * X + V * E + j * D + i] += db;
                    dx[n * X + V * E + (G + j) * D + i] += dc;
                }
                g = group_sum(g, part, tid);
                threadgroup_barrier(mem_flags::mem_device);
                if (tid == 0) {
                    forgotten[n * V + h] = g;
                    forgotten[(N + n) * V + h] = passed;
                    ddt[n * V + h] = fma(a[h], g, dp) * sigmoid(dt[n * V + h] + bias[h]);
                }
            }
        }
    }
}

kernel void ssd_backward_sums(SSD_BACKWARD, uint h [[thread_position_in_grid]])
{
    const uint V = args.V, N = args.B * args.T, S = (args.T + CHUNK - 1) / CHUNK;
    if (h >= V) return;
    device const float* forgotten = scratch + args.B * V * S * args.D * args.E;
    float of_a = args.has_da && args.accumulate ? da[h] : 0.0f;
    float of_bias = args.has_dbias && args.accumulate ? dbias[h] : 0.0f;
    float of_skip = args.has_dskip && args.accumulate ? dskip[h] : 0.0f;
    for (uint n = 0; n < N; ++n) {
        of_a = fma(forgotten[n * V + h], softplus(dt[n * V + h] + bias[h]), of_a);
        of_bias += ddt[n * V + h];
        of_skip += forgotten[(N + n) * V + h];
    }
    if (args.has_da) da[h] = of_a;
    if (args.has_dbias) dbias[h] = of_bias;
    if (args.has_dskip) dskip[h] = of_skip;
}
