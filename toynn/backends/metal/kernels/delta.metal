// The gated delta rule: a state that decays, and unlearns what it stored under a key.
//
//   S_t = e^g[t] S_{t-1} + k (b (v - e^g[t] S_{t-1}^T k))^T        y[t] = S_t^T q
//
//   q = q' / sqrt(q'.q' + eps) / sqrt(D)     k = k' / sqrt(k'.k' + eps)     b = 1 / (1 + e^-c[t])
//
// for each of V heads of values, of E columns; S (D,E) is 0 where a sequence begins. A row of x has q' of K heads
// of D, k' of K heads of D, and v of V heads of E. Head h of V reads head h mod K of q and k; if heads are grouped,
// it reads head h / (V / K). Backward goes from the last row to the first. Let P = e^g S_{t-1}, m = P^T k,
// u = b (v - m), and R = dL/dS_t:
//
//   R  += q dy^T         du = R^T k            dv = b du         dm = -b du         db = du . (v - m)
//   dq  = S_t dy         dk = R u + P dm       R <- R + k dm^T   dg = <R, P>        R <- e^g R
//
// and dc = db b (1 - b); dq' = r (dq - q^ (q^ . dq)) of q = r q', q^ = q without 1 / sqrt(D). Saved: states
// (B,V,S,D,E), the state before every L-th row. forward, cached: a thread for each column of a state; no other
// thread uses that column. backward: a group for each head of q and k takes the heads that read it, one by one. For
// sums over the rows of a state a thread has columns; for sums over columns it has rows.
// D at most GROUP. Formulas: delta.pyx. Source: Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464, section 3.

constant constexpr float EPS = 1e-6f;

// The head of q and k that head h of v reads.
static inline uint read_by(uint h, uint K, uint V, uint grouped) {
    return grouped ? h / (V / K) : h % K;
}

// 1 / sqrt(x . x + eps)
static inline float inverse(device const float* x, uint D) {
    float sum = 0.0f;
    for (uint i = 0; i < D; ++i) sum = fma(x[i], x[i], sum);
    return 1.0f / precise::sqrt(sum + EPS);
}

// Whether a row is the first one of its sequence or segment.
static inline bool begins(device const int* first, bool has_first, uint row, uint T) {
    return has_first ? uint(first[row]) == row : row % T == 0;
}

// Advance a column of a state, whose numbers are E apart, by one row; return y of the column.
static inline float advance(device float* after, device const float* before, bool fresh, device const float* q,
                            device const float* k, float v, float forget, float b, uint D, uint E) {
    const float of_q = inverse(q, D) / precise::sqrt(float(D)), of_k = inverse(k, D);
    float m = 0.0f, y = 0.0f;
    for (uint i = 0; i < D; ++i) {
        const float kept = (fresh ? 0.0f : before[i * E]) * forget;
        after[i * E] = kept;
        m = fma(kept, k[i] * of_k, m);
    }
    const float u = b * (v - m);
    for (uint i = 0; i < D; ++i) {
        const float kept = after[i * E] + k[i] * of_k * u;
        after[i * E] = kept;
        y = fma(kept, q[i] * of_q, y);
    }
    return y;
}

kernel void delta_forward(DELTA_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, K = args.K, V = args.V, D = args.D, E = args.E, L = args.L;
    if (at >= args.B * V * E) return;
    const uint e = at % E, h = at / E % V, b = at / E / V;
    device float* state = scratch + (b * V + h) * D * E + e;
    for (uint t = 0; t < T; ++t) {
        const uint n = b * T + t;
        const bool fresh = begins(first, args.has_first, n, T);
        if (t % L == 0) {
            device float* saved = states + ((b * V + h) * args.S + t / L) * D * E + e;
            for (uint i = 0; i < D; ++i) saved[i * E] = fresh ? 0.0f : state[i * E];
        }
        device const float* q = x + n * args.X + read_by(h, K, V, args.grouped) * D;
        y[n * V * E + h * E + e] = advance(state, state, fresh, q, q + K * D, x[n * args.X + 2 * K * D + h * E + e],
                                           precise::exp(g[n * V + h]), sigmoid(c[n * V + h]), D, E);
    }
}

kernel void delta_cached(DELTA_CACHED, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, K = args.K, V = args.V, D = args.D, E = args.E;
    if (at >= args.B * V * E) return;
    const uint e = at % E, h = at / E % V, b = at / E / V;
    state += (b * V + h) * D * E + e;
    for (uint t = 0; t < T; ++t) {
        const uint n = b * T + t;
        device float* out = y + n * V * E + h * E + e;
        if (t >= uint(count[b])) {
            out[0] = 0.0f;
            continue;
        }
        device const float* q = x + n * args.X + read_by(h, K, V, args.grouped) * D;
        out[0] = advance(state, state, t == 0 && past[b] == 0, q, q + K * D, x[n * args.X + 2 * K * D + h * E + e],
                         precise::exp(g[n * V + h]), sigmoid(c[n * V + h]), D, E);
    }
}

// Turn d, the gradient of scale x / sqrt(x . x + eps), into the gradient of x: D numbers, a thread each.
static inline void normalised_backward(device float* d, device const float* x, uint D, float scale,
                                       threadgroup float* part, uint tid) {
    const bool mine = tid < D;
    const float r = 1.0f / precise::sqrt(group_sum(mine ? x[tid] * x[tid] : 0.0f, part, tid) + EPS);
    const float along = group_sum(mine ? x[tid] * d[tid] : 0.0f, part, tid) * r * r;
    if (mine) d[tid] = scale * r * (d[tid] - x[tid] * along);
}

kernel void delta_backward(
    DELTA_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP], q[GROUP], k[GROUP];
    const uint T = args.T, K = args.K, V = args.V, D = args.D, E = args.E, L = args.L, X = args.X;
    const uint j = group % K, b = group / K, size = D * E;
    if (b >= args.B) return;
    const float root = 1.0f / precise::sqrt(float(D));
    device float* room = scratch + group * ((L + 2) * size + 2 * E);
    device float* R = room + (L + 1) * size;
    device float* us = R + size;
    device float* dms = us + E;
    for (uint n = b * T; n < (b + 1) * T && tid < D; ++n) {
        dx[n * X + j * D + tid] = 0.0f;
        dx[n * X + (K + j) * D + tid] = 0.0f;
    }
    for (uint i = 0; i < V / K; ++i) {
        const uint h = args.grouped ? j * (V / K) + i : i * K + j;
        for (uint at = tid; at < size; at += GROUP) R[at] = 0.0f;
        for (uint chunk = (T + L - 1) / L; chunk > 0; --chunk) {
            const uint begin = (chunk - 1) * L, end = min(begin + L, T);
            device const float* saved = states + ((b * V + h) * args.S + chunk - 1) * size;
            threadgroup_barrier(mem_flags::mem_device);
            for (uint e = tid; e < E; e += GROUP) {
                for (uint i = 0; i < D; ++i) room[i * E + e] = saved[i * E + e];
                for (uint t = begin; t < end; ++t) {
                    const uint n = b * T + t;
                    device float* before = room + (t - begin) * size + e;
                    device const float* row = x + n * X + j * D;
                    advance(before + size, before, begins(first, args.has_first, n, T), row, row + K * D,
                            x[n * X + 2 * K * D + h * E + e], precise::exp(g[n * V + h]), sigmoid(c[n * V + h]), D, E);
                }
            }
            for (uint t = end; t > begin; --t) {
                const uint n = b * T + t - 1;
                const bool fresh = begins(first, args.has_first, n, T);
                device const float* before = room + (t - 1 - begin) * size;
                device const float* after = before + size;
                device const float* row = x + n * X + j * D;
                device const float* out = dy + n * V * E + h * E;
                const uint v = n * X + 2 * K * D + h * E;
                float slope;
                const float forget = precise::exp(g[n * V + h]), write = sigmoid_slope(c[n * V + h], slope);
                const float own_q = tid < D ? row[tid] : 0.0f, own_k = tid < D ? row[K * D + tid] : 0.0f;
                const float of_q = root / precise::sqrt(group_sum(own_q * own_q, part, tid) + EPS);
                const float of_k = 1.0f / precise::sqrt(group_sum(own_k * own_k, part, tid) + EPS);
                q[tid] = own_q * of_q;
                k[tid] = own_k * of_k;
                threadgroup_barrier(mem_flags::mem_threadgroup);
                threadgroup_barrier(mem_flags::mem_device);
                float db = 0.0f;
                for (uint e = tid; e < E; e += GROUP) {
                    float du = 0.0f, m = 0.0f;
                    for (uint i = 0; i < D; ++i) {
                        const float r = fma(q[i], out[e], R[i * E + e]);
                        R[i * E + e] = r;
                        du = fma(r, k[i], du);
                        m = fma((fresh ? 0.0f : before[i * E + e]) * forget, k[i], m);
                    }
                    const float rest = x[v + e] - m;
                    us[e] = write * rest;
                    dms[e] = -write * du;
                    dx[v + e] = write * du;
                    db = fma(du, rest, db);
                }
                db = group_sum(db, part, tid);
                threadgroup_barrier(mem_flags::mem_device);
                float kept = 0.0f;
                if (tid < D) {
                    float dq = 0.0f, dk = 0.0f;
                    for (uint e = 0; e < E; ++e) {
                        const float p = (fresh ? 0.0f : before[tid * E + e]) * forget;
                        const float r = R[tid * E + e], grown = fma(k[tid], dms[e], r);
                        dq = fma(after[tid * E + e], out[e], dq);
                        dk = fma(p, dms[e], fma(r, us[e], dk));
                        kept = fma(grown, p, kept);
                        R[tid * E + e] = fresh ? 0.0f : forget * grown;
                    }
                    dx[n * X + j * D + tid] += dq;
                    dx[n * X + (K + j) * D + tid] += dk;
                }
                kept = group_sum(kept, part, tid);
                if (tid == 0) {
                    dg[n * V + h] = kept;
                    dc[n * V + h] = db * slope;
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_device);
    }
    for (uint n = b * T; n < (b + 1) * T; ++n) {
        normalised_backward(dx + n * X + j * D, x + n * X + j * D, D, root, part, tid);
        normalised_backward(dx + n * X + (K + j) * D, x + n * X + (K + j) * D, D, 1.0f, part, tid);
    }
}
