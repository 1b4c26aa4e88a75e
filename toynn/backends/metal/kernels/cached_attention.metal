// Causal attention of the newest T rows of a sequence over a cache of all its keys and values.
//
//   kc[past + t] <- k[t],  vc[past + t] <- v[t]          t = 0 .. T - 1
//   s[t,j] = scale q[t] . kc[j]                          j <= past + t, and past + t - window < j
//   o[t]   = sum_j e^(s[t,j] - lse[t]) vc[j]             lse[t] = log sum_j e^(s[t,j])
//
// There are B sequences and H heads. q and k have D columns per head, v and o have E. Each of KV heads of k and v
// serves H / KV query heads. The caches are (B, KV, S, D) and (B, KV, S, E). Without v and vc the first E columns
// of keys are the values. past (B,) is how many rows of each sequence the caches hold. Rows from past + T on are
// neither read nor written. First a thread for each number adds k and v to the caches. Then a group for each row
// and head takes GROUP keys at a time, a thread per key, and keeps a running maximum and sum. For the values, a
// line of threads takes LINE columns of a part of the keys. At the end the sums of lines with the same columns are
// added up. A group has WIDE columns; if E is larger, other groups recompute the scores for the other columns.
// Windows, caps and sinks are those of attention.metal. No gradient.
//
// If rows and heads are few, groups go over spans of KEYS keys. They leave their results in scratch, for each
// row, head and span: E columns, then the maximum and the sum. A thread for each output merges them:
//
//   o = sum_n e^(most_n - most) o_n / sum_n e^(most_n - most) sum_n       most = max_n most_n
//
// Source: Dao et al. 2023, Flash-Decoding, crfm.stanford.edu/2023/10/12/flashdecoding.html.
#include "heads.metal"

constant constexpr uint KEYS = 1024;  // grids.py knows it too
constant constexpr uint DEEP = 16;    // columns of GROUP keys at a time

kernel void cached_attention_forward_store(CACHED_ATTENTION_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, KV = args.KV, D = args.D, E = args.E, most = max(D, E);
    if (at >= args.B * T * KV * most) return;
    const uint d = at % most, g = at / most % KV, t = at / most / KV % T, b = at / most / KV / T;
    const uint to = (b * KV + g) * args.S + uint(past[b]) + t;
    if (d < D) kc[to * D + d] = k[(b * T + t) * args.ldk + g * D + d];
    if (args.has_v && d < E) vc[to * E + d] = v[(b * T + t) * args.ldv + g * E + d];
}

// Add one more score to a row: that of a key whose value is 0.
static inline void sink(thread float& most, thread float& sum, thread float& out, float score) {
    const float top = max(most, score), shrunk = precise::exp(most - top);
    sum = sum * shrunk + precise::exp(score - top);
    out *= shrunk;
    most = top;
}

// A group's result for some keys: every thread has the maximum and the sum, and the output of its own column.
struct Seen {
    float most, sum, out;
};

// Attend one row q to keys `begin` .. `end` - 1 of a head (K, V), for the columns of V from c0 on. V has E columns,
// and its rows are ldv apart. `tile` has room for GROUP (DEEP + 1) numbers, P and part for GROUP. out is complete
// in the threads of the first lines, one thread per column.
static inline Seen attend(device const float* q, device const float* K, device const float* V, uint D, uint E, uint ldv,
                          float scale, float cap, uint begin, uint end, uint c0, threadgroup float* tile,
                          threadgroup float* P, threadgroup float* part, uint tid) {
    const uint across = (min(WIDE, E - c0) + LINE - 1) / LINE, sharing = LINES / across;
    const uint line = tid / LINE, column = c0 + line % across * LINE + tid % LINE;
    const bool works = line < across * sharing && column < E;
    Seen seen = {-INFINITY, 0.0f, 0.0f};
    for (uint j0 = begin; j0 < end; j0 += GROUP) {
        float dot = 0.0f;
        for (uint d = 0; d < D; d += DEEP) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint at = tid; at < GROUP * DEEP; at += GROUP) {
                const uint j = j0 + at / DEEP, c = d + at % DEEP;
                tile[at / DEEP * (DEEP + 1) + at % DEEP] = j < end && c < D ? K[j * D + c] : 0.0f;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < min(DEEP, D - d); ++i) dot = fma(q[d + i], tile[tid * (DEEP + 1) + i], dot);
        }
        float slope;
        const float s = j0 + tid < end ? capped(dot * scale, cap, slope) : -INFINITY;
        const float top = max(seen.most, group_max(s, part, tid));
        const float p = top == -INFINITY ? (s == top ? 0.0f : NAN) : precise::exp(s - top);
        const float shrunk = seen.most == -INFINITY ? 0.0f : precise::exp(seen.most - top);
        seen.sum = seen.sum * shrunk + group_sum(p, part, tid);
        seen.most = top;
        seen.out *= shrunk;
        P[tid] = p;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (works) {
            const uint here = min(GROUP, end - j0);
            for (uint i = line / across; i < here; i += sharing) {
                seen.out = fma(P[i], V[(j0 + i) * ldv + column], seen.out);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    P[tid] = works ? seen.out : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 1; i < sharing && line < across; ++i) seen.out += P[tid + i * across * LINE];
    return seen;
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void cached_attention_forward(
    CACHED_ATTENTION_FORWARD, uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float tile[GROUP * (DEEP + 1)], P[GROUP], part[GROUP];
    const uint T = args.T, H = args.H, D = args.D, E = args.E, t = group.x, h = group.y % H, b = group.y / H;
    if (t >= T || b >= args.B) return;
    const uint keys = uint(past[b]) + t + 1, head = (b * args.KV + h / (H / args.KV)) * args.S;
    const uint ldv = args.has_v ? E : D;
    device const float* values = args.has_v ? vc + head * E : kc + head * D;
    device const float* own = q + (b * T + t) * args.ldq + h * D;
    const uint begin = first_key(keys - 1, 0, args.window), c0 = group.z * WIDE, column = c0 + tid;
    Seen seen =
        attend(own, kc + head * D, values, D, E, ldv, args.scale, args.cap, begin, keys, c0, tile, P, part, tid);
    if (args.has_sinks) sink(seen.most, seen.sum, seen.out, sinks[h]);
    if (tid < WIDE && column < E) o[(b * T + t) * H * E + h * E + column] = seen.out / seen.sum;
}

[[max_total_threads_per_threadgroup(GROUP)]]
kernel void cached_attention_forward_spans(
    CACHED_ATTENTION_FORWARD, uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float tile[GROUP * (DEEP + 1)], P[GROUP], part[GROUP];
    const uint T = args.T, H = args.H, D = args.D, E = args.E, spans = (args.S + KEYS - 1) / KEYS;
    const uint span = group.x, row = group.y / H, h = group.y % H, b = row / T, t = row % T;
    if (row >= args.B * T) return;
    const uint keys = uint(past[b]) + t + 1, end = min((span + 1) * KEYS, keys);
    const uint begin = max(span * KEYS, first_key(keys - 1, 0, args.window));
    if (begin >= end) return;
    const uint head = (b * args.KV + h / (H / args.KV)) * args.S, c0 = group.z * WIDE, column = c0 + tid;
    const uint ldv = args.has_v ? E : D;
    device const float* values = args.has_v ? vc + head * E : kc + head * D;
    device const float* own = q + row * args.ldq + h * D;
    device float* left = scratch + (group.y * spans + span) * (E + 2);
    const Seen seen =
        attend(own, kc + head * D, values, D, E, ldv, args.scale, args.cap, begin, end, c0, tile, P, part, tid);
    if (tid < WIDE && column < E) left[column] = seen.out;
    if (tid == 0 && group.z == 0) {
        left[E] = seen.most;
        left[E + 1] = seen.sum;
    }
}

kernel void cached_attention_forward_merge(CACHED_ATTENTION_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint T = args.T, H = args.H, E = args.E, spans = (args.S + KEYS - 1) / KEYS;
    if (at >= args.B * T * H * E) return;
    const uint d = at % E, head = at / E, row = head / H;
    const uint i = uint(past[row / T]) + row % T;
    const uint begin = first_key(i, 0, args.window) / KEYS, end = i / KEYS + 1;
    device const float* left = scratch + head * spans * (E + 2);
    float most = -INFINITY, sum = 0.0f, out = 0.0f;
    for (uint n = begin; n < end; ++n) most = max(most, left[n * (E + 2) + E]);
    for (uint n = begin; n < end; ++n) {
        const float weight = precise::exp(left[n * (E + 2) + E] - most);
        sum += weight * left[n * (E + 2) + E + 1];
        out += weight * left[n * (E + 2) + d];
    }
    if (args.has_sinks) sink(most, sum, out, sinks[head % H]);
    o[at] = out / sum;
}
