// Causal attention of the newest T rows of a sequence over a cache of all its keys and values.
//
//   kc[past + t] <- k[t],  vc[past + t] <- v[t]          t = 0 .. T - 1
//   s[t,j] = scale q[t] . kc[j]                          j <= past + t
//   o[t]   = sum_j e^(s[t,j] - lse[t]) vc[j]             lse[t] = log sum_j e^(s[t,j])
//
// for each of B sequences and H heads of D columns; KV heads of k and v serve H / KV query heads each. The caches
// are (B, KV, S, D); past (B,) is how many rows of each sequence they hold; later rows are neither read nor,
// beyond past + T, written. First a thread for each number that is added to the caches. Then a group for each
// row and head: it takes GROUP keys at a time, a thread each, and keeps a running maximum and sum; for the values
// a line of threads takes LINE columns, of every so many keys, and lines that share columns add up at the end.
// WIDE columns a group; where D is more, others compute the scores again for theirs. No gradient.
// Source: Dao et al. 2023, Flash-Decoding, crfm.stanford.edu/2023/10/12/flashdecoding.html, without its spans.

kernel void cached_attention_forward_store(device float*                     kc   [[buffer(1)]],
                                           device float*                     vc   [[buffer(2)]],
                                           device const float*               k    [[buffer(4)]],
                                           device const float*               v    [[buffer(5)]],
                                           device const int*                 past [[buffer(6)]],
                                           constant CachedAttentionForward&  args [[buffer(7)]],
                                           uint at [[thread_position_in_grid]])
{
    const uint T = args.T, KV = args.KV, D = args.D;
    if (at >= args.B * T * KV * D) return;
    const uint d = at % D, g = at / D % KV, t = at / D / KV % T, b = at / D / KV / T;
    const uint to = ((b * KV + g) * args.S + uint(past[b]) + t) * D + d;
    kc[to] = k[(b * T + t) * args.ldk + g * D + d];
    vc[to] = v[(b * T + t) * args.ldv + g * D + d];
}

kernel void cached_attention_forward(device float*                     o    [[buffer(0)]],
                                     device const float*               kc   [[buffer(1)]],
                                     device const float*               vc   [[buffer(2)]],
                                     device const float*               q    [[buffer(3)]],
                                     device const int*                 past [[buffer(6)]],
                                     constant CachedAttentionForward&  args [[buffer(7)]],
                                     uint3 group [[threadgroup_position_in_grid]],
                                     uint  tid   [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP], P[GROUP];
    const uint T = args.T, H = args.H, D = args.D, t = group.x, h = group.y % H, b = group.y / H;
    if (t >= T || b >= args.B) return;
    const uint keys = uint(past[b]) + t + 1, head = (b * args.KV + h / (H / args.KV)) * args.S * D;
    device const float* q_t = q + (b * T + t) * args.ldq + h * D;
    device const float* K = kc + head;
    device const float* V = vc + head;
    const uint wide = min(WIDE, D - group.z * WIDE), across = (wide + LINE - 1) / LINE, sharing = LINES / across;
    const uint line = tid / LINE, column = group.z * WIDE + line % across * LINE + tid % LINE;
    const bool works = line < across * sharing && column < D;
    float most = -INFINITY, sum = 0.0f, out = 0.0f;
    for (uint j0 = 0; j0 < keys; j0 += GROUP) {
        const uint j = j0 + tid;
        float s = -INFINITY;
        if (j < keys) {
            float dot = 0.0f;
            for (uint d = 0; d < D; ++d) dot = fma(q_t[d], K[j * D + d], dot);
            s = dot * args.scale;
        }
        const float top = max(most, group_max(s, part, tid));
        const float p = top == -INFINITY ? (s == top ? 0.0f : NAN) : precise::exp(s - top);
        const float shrunk = most == -INFINITY ? 0.0f : precise::exp(most - top);
        sum = sum * shrunk + group_sum(p, part, tid);
        most = top;
        out *= shrunk;
        P[tid] = p;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (works) {
            const uint here = min(GROUP, keys - j0);
            for (uint i = line / across; i < here; i += sharing) out = fma(P[i], V[(j0 + i) * D + column], out);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    P[tid] = works ? out : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (line >= across || column >= D) return;
    for (uint i = 1; i < sharing; ++i) out += P[tid + i * across * LINE];
    o[(b * T + t) * H * D + h * D + column] = out / sum;
}
