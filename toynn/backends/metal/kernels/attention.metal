// Scaled dot-product attention, causal or full, with grouped queries, without a T x T matrix.
//
//   s[i,j] = scale q[i] . k[j]                 j <= i if causal, else j < i + window; and i - window < j
//   p[i,j] = exp(s[i,j] - lse[i])              lse[i] = log sum_j exp(s[i,j])
//   o[i]   = sum_j p[i,j] v[j]
//
//   delta[i] = do[i] . o[i]                    ds[i,j] = p[i,j] (do[i] . v[j] - delta[i])
//   dq[i] = scale sum_j ds[i,j] k[j]           dk[j] = scale sum_i ds[i,j] q[i]
//   dv[j] = sum_i p[i,j] do[i]
//
// There are B sequences of T rows, and H heads. q and k have D columns per head, v and o have E. Each of KV heads
// of k and v serves H / KV query heads. Rows of q, k, v (and of dq, dk, dv) are ldq, ldk, ldv apart; o, do are
// (B*T, H*E). Scores are stored in tiles of LINE x LINE (heads.metal). forward: a group for LINE queries of a head
// goes over the keys, with a running maximum and sum per row. backward: a line per row computes delta. A group for
// LINE queries computes dq. A group for LINE keys computes dk and dv, over the queries of all heads that they
// serve. Outputs that are not wanted are not computed. A group has the sums of WIDE columns; if there are more,
// other groups recompute the scores for the other columns. Saved: o, lse (B,H,T).
//
// Rows may come in segments, which do not see each other. first[i] is the first row of row i's segment,
// counted over all rows. A window of 0 means none. With a cap, s[i,j] is cap tanh(s[i,j] / cap), and ds[i,j] is
// multiplied by the slope, 1 - (s[i,j] / cap)^2. A sink is one more score of each row of a head, for a key without
// a value. Its gradient is - sum_i e^(sink - lse[i]) delta[i]. All products are float32, in every precision.
// Source: Dao 2023 (FlashAttention-2), arXiv:2307.08691, algorithms 1 and 2.
#include "heads.metal"

// Whether row i of a sequence sees key j: keys from `from` on that are below T and, if causal, not after row i. If not
// causal, they are in its window on the other side, too, and in its segment; `first` says which, if there are any.
static inline bool sees(uint i, uint j, uint from, uint T, bool causal, uint window, bool segments,
                        device const int* first) {
    if (j < from || j >= T || causal) return j >= from && j < T && j <= i;
    return (window == 0 || j < i + window) && (!segments || (i < T && first[i] == first[j]));
}

// The row after the last key that one of the rows start .. start + LINE - 1 sees; segments may end before it.
static inline uint keys_end(uint start, uint T, bool causal, uint window) {
    if (causal) return min(T, start + LINE);
    return window == 0 ? T : min(T, start + LINE - 1 + window);
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void attention_forward(
    ATTENTION_FORWARD, uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float Q[LINE * SPAN], K[LINE * SPAN], P[LINE * SPAN], part[GROUP];
    const uint T = args.T, D = args.D, E = args.E, H = args.H, start = group.x * LINE;
    if (start >= T) return;
    const uint h = group.y % H, b = group.y / H, c0 = group.z * WIDE, own = tid / LINE;
    q += b * T * args.ldq + h * D;
    k += b * T * args.ldk + h / (H / args.KV) * D;
    v += b * T * args.ldv + h / (H / args.KV) * E;
    uint from[OWN];
    float most[OWN], sum[OWN], out[PARTS][OWN];
    for (uint i = 0; i < OWN; ++i) {
        const uint row = start + own + LINES * i;
        from[i] = first_key(row, args.has_first && row < T ? uint(first[b * T + row]) - b * T : 0, args.window);
        most[i] = args.has_sinks ? sinks[h] : -INFINITY;
        sum[i] = args.has_sinks ? 1.0f : 0.0f;
        for (uint c = 0; c < PARTS; ++c) out[c][i] = 0.0f;
    }
    const uint begin = first_key(start, args.has_first ? uint(first[b * T + start]) - b * T : 0, args.window);
    const uint end = keys_end(start, T, args.causal, args.window), last = b * T + min(T, start + LINE) - 1;
    device const int* own_first = first + b * T;
    for (uint j0 = begin; j0 < end; j0 += LINE) {
        if (args.has_first && uint(own_first[j0]) > last) break;  // the segments of these keys begin after the rows
        float s[OWN] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (uint d = 0; d < D; d += LINE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            take(Q, q, args.ldq, T, D, start, d, tid);
            take(K, k, args.ldk, T, D, j0, d, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_rows(s, Q, K, tid);
        }
        const uint j = j0 + tid % LINE;
        for (uint i = 0; i < OWN; ++i) {
            const uint row = start + own + LINES * i;
            float slope;
            s[i] = capped(s[i] * args.scale, args.cap, slope);
            s[i] = sees(row, j, from[i], T, args.causal, args.window, args.has_first, own_first) ? s[i] : -INFINITY;
            const float top = max(most[i], line_max(s[i], part, tid));
            const float p = top == -INFINITY ? (s[i] == top ? 0.0f : NAN) : precise::exp(s[i] - top);
            const float shrunk = most[i] == -INFINITY ? 0.0f : precise::exp(most[i] - top);
            sum[i] = sum[i] * shrunk + line_sum(p, part, tid);
            most[i] = top;
            for (uint c = 0; c < PARTS; ++c) out[c][i] *= shrunk;
            P[(own + LINES * i) * SPAN + tid % LINE] = p;
        }
        #pragma unroll
        for (uint c = 0; c < PARTS; ++c) {
            if (c0 + c * LINE >= E) break;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            take(K, v, args.ldv, T, E, j0, c0 + c * LINE, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_columns(out[c], P, K, tid);
        }
    }
    for (uint i = 0; i < OWN; ++i) {
        const uint row = start + own + LINES * i;
        if (row >= T) continue;
        for (uint c = 0; c < PARTS; ++c) {
            const uint column = c0 + c * LINE + tid % LINE;
            if (column < E) o[(b * T + row) * H * E + h * E + column] = out[c][i] / sum[i];
        }
        if (group.z == 0 && tid % LINE == 0) lse[group.y * T + row] = most[i] + precise::log(sum[i]);
    }
}

kernel void attention_backward_delta(
    ATTENTION_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint T = args.T, E = args.E, H = args.H, at = group * LINES + tid / LINE;
    float sum = 0.0f;
    if (at < args.B * H * T) {
        const uint row = at / T / H * T + at % T, h = at / T % H;
        for (uint d = tid % LINE; d < E; d += LINE) {
            sum += do_[(row * H + h) * E + d] * o[(row * H + h) * E + d];
        }
    }
    sum = line_sum(sum, part, tid);
    if (at < args.B * H * T && tid % LINE == 0) delta[at] = sum;
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void attention_backward_q(
    ATTENTION_BACKWARD, uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float Q[LINE * SPAN], K[LINE * SPAN], O[LINE * SPAN], V[LINE * SPAN], P[LINE * SPAN];
    const uint T = args.T, D = args.D, E = args.E, H = args.H, start = group.x * LINE;
    if (start >= T) return;
    const uint h = group.y % H, b = group.y / H, c0 = group.z * WIDE, own = tid / LINE;
    q += b * T * args.ldq + h * D;
    k += b * T * args.ldk + h / (H / args.KV) * D;
    v += b * T * args.ldv + h / (H / args.KV) * E;
    do_ += b * T * H * E + h * E;
    dq += b * T * args.ldq + h * D;
    uint from[OWN];
    float out[PARTS][OWN];
    for (uint i = 0; i < OWN; ++i) {
        const uint row = start + own + LINES * i;
        from[i] = first_key(row, args.has_first && row < T ? uint(first[b * T + row]) - b * T : 0, args.window);
        for (uint c = 0; c < PARTS; ++c) out[c][i] = 0.0f;
    }
    const uint begin = first_key(start, args.has_first ? uint(first[b * T + start]) - b * T : 0, args.window);
    const uint end = keys_end(start, T, args.causal, args.window), last = b * T + min(T, start + LINE) - 1;
    device const int* own_first = first + b * T;
    for (uint j0 = begin; j0 < end; j0 += LINE) {
        if (args.has_first && uint(own_first[j0]) > last) break;  // the segments of these keys begin after the rows
        float s[OWN] = {0.0f, 0.0f, 0.0f, 0.0f}, dp[OWN] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (uint d = 0; d < max(D, E); d += LINE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            take(Q, q, args.ldq, T, D, start, d, tid);
            take(K, k, args.ldk, T, D, j0, d, tid);
            take(O, do_, H * E, T, E, start, d, tid);
            take(V, v, args.ldv, T, E, j0, d, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_rows(s, Q, K, tid);
            add_rows(dp, O, V, tid);
        }
        const uint j = j0 + tid % LINE;
        for (uint i = 0; i < OWN; ++i) {
            const uint row = start + own + LINES * i, at = group.y * T + row;
            float ds = 0.0f;
            if (row < T && sees(row, j, from[i], T, args.causal, args.window, args.has_first, own_first)) {
                float slope;
                const float p = precise::exp(capped(s[i] * args.scale, args.cap, slope) - lse[at]);
                ds = p * (dp[i] - delta[at]) * slope * args.scale;
            }
            P[(own + LINES * i) * SPAN + tid % LINE] = ds;
        }
        #pragma unroll
        for (uint c = 0; c < PARTS; ++c) {
            if (c0 + c * LINE >= D) break;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            take(K, k, args.ldk, T, D, j0, c0 + c * LINE, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            add_columns(out[c], P, K, tid);
        }
    }
    for (uint i = 0; i < OWN; ++i) {
        const uint row = start + own + LINES * i;
        for (uint c = 0; c < PARTS; ++c) {
            const uint column = c0 + c * LINE + tid % LINE;
            if (row < T && column < D) dq[row * args.ldq + column] = out[c][i];
        }
    }
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void attention_backward_kv(
    ATTENTION_BACKWARD, uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float Q[LINE * SPAN], K[LINE * SPAN], O[LINE * SPAN], V[LINE * SPAN], P[LINE * SPAN];
    threadgroup float S[LINE * SPAN];
    const uint T = args.T, D = args.D, E = args.E, H = args.H, KV = args.KV, start = group.x * LINE;
    if (start >= T) return;
    const uint served = H / KV, g = group.y % KV, b = group.y / KV, c0 = group.z * WIDE, own = tid / LINE;
    k += b * T * args.ldk + g * D;
    v += b * T * args.ldv + g * E;
    dk += b * T * args.ldk + g * D;
    dv += b * T * args.ldv + g * E;
    float k_sum[PARTS][OWN], v_sum[PARTS][OWN];
    for (uint c = 0; c < PARTS; ++c) {
        for (uint i = 0; i < OWN; ++i) k_sum[c][i] = v_sum[c][i] = 0.0f;
    }
    const uint last = min(T, start + LINE) - 1, j = start + tid % LINE;
    device const int* own_first = first + b * T;
    const uint before = first_key(start, args.has_first ? uint(own_first[start]) - b * T : 0, args.window);
    for (uint h = g * served; h < (g + 1) * served; ++h) {
        device const float* q_h = q + b * T * args.ldq + h * D;
        device const float* o_h = do_ + b * T * H * E + h * E;
        for (uint i0 = args.causal ? start : before; i0 < T; i0 += LINE) {
            const uint segment = args.has_first ? uint(first[b * T + i0]) - b * T : 0;
            if (first_key(i0, segment, args.window) > last) break;  // later rows do not see these keys either
            float s[OWN] = {0.0f, 0.0f, 0.0f, 0.0f}, dp[OWN] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint d = 0; d < max(D, E); d += LINE) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                take(Q, q_h, args.ldq, T, D, i0, d, tid);
                take(K, k, args.ldk, T, D, start, d, tid);
                if (args.has_dk) take(O, o_h, H * E, T, E, i0, d, tid);
                if (args.has_dk) take(V, v, args.ldv, T, E, start, d, tid);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                add_rows(s, Q, K, tid);
                if (args.has_dk) add_rows(dp, O, V, tid);
            }
            for (uint i = 0; i < OWN; ++i) {
                const uint row = i0 + own + LINES * i, at = (b * H + h) * T + row;
                float p = 0.0f, ds = 0.0f;
                if (row < T) {
                    const uint segment = args.has_first ? uint(first[b * T + row]) - b * T : 0;
                    const uint from = first_key(row, segment, args.window);
                    if (sees(row, j, from, T, args.causal, args.window, args.has_first, own_first)) {
                        float slope;
                        p = precise::exp(capped(s[i] * args.scale, args.cap, slope) - lse[at]);
                        if (args.has_dk) ds = p * (dp[i] - delta[at]) * slope * args.scale;
                    }
                }
                P[(own + LINES * i) * SPAN + tid % LINE] = p;
                S[(own + LINES * i) * SPAN + tid % LINE] = ds;
            }
            #pragma unroll
            for (uint c = 0; c < PARTS; ++c) {
                if (c0 + c * LINE >= max(D, E)) break;
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (args.has_dk) take(Q, q_h, args.ldq, T, D, i0, c0 + c * LINE, tid);
                if (args.has_dv) take(O, o_h, H * E, T, E, i0, c0 + c * LINE, tid);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (args.has_dk) add_turned(k_sum[c], S, Q, tid);
                if (args.has_dv) add_turned(v_sum[c], P, O, tid);
            }
        }
    }
    for (uint i = 0; i < OWN; ++i) {
        const uint row = start + own + LINES * i;
        for (uint c = 0; c < PARTS; ++c) {
            const uint column = c0 + c * LINE + tid % LINE;
            if (row >= T) continue;
            if (args.has_dk && column < D) dk[row * args.ldk + column] = k_sum[c][i];
            if (args.has_dv && column < E) dv[row * args.ldv + column] = v_sum[c][i];
        }
    }
}

kernel void attention_backward_sinks(
    ATTENTION_BACKWARD_SINKS, uint h [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint T = args.T, E = args.E, H = args.H;
    if (h >= H) return;
    float sum = 0.0f;
    for (uint i = tid; i < args.B * T; i += GROUP) {
        float delta = 0.0f;
        for (uint d = (i * H + h) * E; d < (i * H + h + 1) * E; ++d) delta = fma(do_[d], o[d], delta);
        sum -= precise::exp(sinks[h] - lse[(i / T * H + h) * T + i % T]) * delta;
    }
    sum = group_sum(sum, part, tid);
    if (tid == 0) dsinks[h] = args.accumulate ? dsinks[h] + sum : sum;
}
