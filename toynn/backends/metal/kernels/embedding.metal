// Embedding: rows of a table, gathered by id.
//
//   y[n,c]  = w[ids[n],c]
//   dw[v,c] = sum of dy[n,c] over the n with ids[n] = v
//
// N ids, a table of V rows, C channels. For forward w may have any type of quantized.metal: a thread takes RUN
// elements of a row. Backward: dw is first cleared, unless it is added to. Then one group writes each row of dw:
// the group of the first row with that id. It adds up all rows with the id, in order. An id outside 0..V-1 is
// skipped: y gets zeros, dw nothing.
// Source: the lookup table of Bengio et al. 2003, A Neural Probabilistic Language Model, section 2.
#include "quantized.metal"

kernel void embedding_forward(EMBEDDING_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint C = args.C, runs = (C + RUN - 1) / RUN;
    if (at >= args.N * runs) return;
    const uint n = at / runs, first = at % runs * RUN;
    const int id = ids[n];
    float run[RUN];
    if (id >= 0 && uint(id) < args.V) {
        dequantize(run, w, args.type, uint(id), C, first);
    } else {
        for (uint i = 0; i < RUN; ++i) run[i] = 0.0f;
    }
    for (uint i = 0; i < min(RUN, C - first); ++i) y[n * C + first + i] = run[i];
}

kernel void embedding_backward_clear(EMBEDDING_BACKWARD, uint i [[thread_position_in_grid]])
{
    if (i < args.V * args.C && !args.accumulate) dw[i] = 0.0f;
}

kernel void embedding_backward(
    EMBEDDING_BACKWARD, uint n [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    if (n >= args.N) return;
    const int id = ids[n];
    if (id < 0 || uint(id) >= args.V) return;
    float seen = 0.0f;
    for (uint i = tid; i < n; i += GROUP) seen = ids[i] == id ? 1.0f : seen;
    if (group_max(seen, part, tid) > 0.0f) return;
    for (uint c = tid; c < args.C; c += GROUP) {
        float sum = dw[uint(id) * args.C + c];
        for (uint i = n; i < args.N; ++i) {
            if (ids[i] == id) sum += dy[i * args.C + c];
        }
        dw[uint(id) * args.C + c] = sum;
    }
}
