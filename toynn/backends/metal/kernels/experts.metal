// Grouped products: each expert's matrix times the rows that were sent to it.
//
//   forward           y[r,n]    = sum_k x[r,k] w[e,n,k] + b[e,n]
//   backward_input    dx[r,k]   = sum_n dy[r,n] w[e,n,k]
//   backward_weight   dw[e,n,k] = sum_r dy[r,n] x[r,k]
//   backward_bias     db[e,n]   = sum_r dy[r,n]            offsets[e] <= r < offsets[e+1]
//
// M rows, sorted by expert, of which the first offsets[E] exist; E experts of N outputs and K inputs. w may have
// any type of quantized.metal. A group computes TILE x TILE results (products.metal). For y and dx it goes over all
// experts with rows in its tile, and writes for each expert only that expert's rows. So infinities and NaN of other
// experts' matrices do not reach these rows. For dw a group has one expert. If there are few rows (forward_gemv), a
// line of threads computes one output. Precision "medium" (rough) means the same as in matmul.metal.
// Source: Gale et al. 2022, MegaBlocks, arXiv:2211.15841, section 4.
#include "products.metal"

// The expert of row r; E if the row belongs to no expert.
static inline uint expert_of(device const int* offsets, uint E, uint r) {
    uint e = 0;
    while (e < E && uint(offsets[e + 1]) <= r) ++e;
    return e;
}

template <typename T>
static inline void forward(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* y,
                           device const float* x, device const uchar* w, device const float* b,
                           device const int* offsets, constant ExpertsForward& args, uint2 tile, uint tid) {
    const uint N = args.N, K = args.K, E = args.E, M = min(args.M, uint(offsets[E]));
    const uint r0 = tile.y * TILE, n0 = tile.x * TILE;
    if (r0 >= M) return;
    for (uint e = expert_of(offsets, E, r0); e < E && uint(offsets[e]) < min(r0 + TILE, M); ++e) {
        const uint from = uint(offsets[e]), end = min(uint(offsets[e + 1]), M);
        if (from == end) continue;
        Sums sums;
        clear(sums);
        for (uint k = 0; k < K; k += TERMS) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            fetch(A, (device const uchar*)x, 0, end, K, r0, k, TILE, TERMS, PITCH, tid);
            fetch(B, w, args.type, (e + 1) * N, K, e * N + n0, k, TILE, TERMS, PITCH, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            multiply<true, true>(sums, A, B, tid);
        }
        #pragma unroll
        for (uint i = 0; i < OWN; ++i) {
            uint2 place;
            const float sum = sum_of(sums, i, part, tid, place);
            const uint r = r0 + place.x, n = n0 + place.y;
            if (r >= from && r < end && n < N) y[r * N + n] = args.has_b ? sum + b[e * N + n] : sum;
        }
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_forward(
    EXPERTS_FORWARD, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    forward(A, B, part, y, x, w, b, offsets, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_forward_rough(
    EXPERTS_FORWARD, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    forward(A, B, part, y, x, w, b, offsets, args, tile, tid);
}

kernel void experts_forward_gemv(
    EXPERTS_FORWARD, uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint N = args.N, K = args.K, r = group.y, n = group.x * (GROUP / LINE) + tid / LINE;
    if (r >= min(args.M, uint(offsets[args.E]))) return;
    const uint e = expert_of(offsets, args.E, r);
    float sum = 0.0f, run[RUN];
    if (n < N) {
        for (uint k = tid % LINE * RUN; k < K; k += LINE * RUN) {
            dequantize(run, w, args.type, e * N + n, K, k);
            for (uint i = 0; i < min(RUN, K - k); ++i) sum = fma(x[r * K + k + i], run[i], sum);
        }
    }
    sum = line_sum(sum, part, tid);
    if (tid % LINE == 0 && n < N) y[r * N + n] = args.has_b ? sum + b[e * N + n] : sum;
}

template <typename T>
static inline void backward_input(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* dx,
                                  device const float* dy, device const uchar* w, device const int* offsets,
                                  constant ExpertsBackwardInput& args, uint2 tile, uint tid) {
    const uint N = args.N, K = args.K, E = args.E, M = min(args.M, uint(offsets[E]));
    const uint r0 = tile.y * TILE, k0 = tile.x * TILE;
    if (r0 >= M) return;
    for (uint e = expert_of(offsets, E, r0); e < E && uint(offsets[e]) < min(r0 + TILE, M); ++e) {
        const uint from = uint(offsets[e]), end = min(uint(offsets[e + 1]), M);
        if (from == end) continue;
        Sums sums;
        clear(sums);
        for (uint n = 0; n < N; n += TERMS) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            fetch(A, (device const uchar*)dy, 0, end, N, r0, n, TILE, TERMS, PITCH, tid);
            fetch(B, w, args.type, (e + 1) * N, K, e * N + n, k0, TERMS, TILE, TILE_PITCH, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            multiply<true, false>(sums, A, B, tid);
        }
        #pragma unroll
        for (uint i = 0; i < OWN; ++i) {
            uint2 place;
            const float sum = sum_of(sums, i, part, tid, place);
            const uint r = r0 + place.x, k = k0 + place.y, to = r * K + k;
            if (r >= from && r < end && k < K) dx[to] = args.accumulate ? dx[to] + sum : sum;
        }
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_backward_input(
    EXPERTS_BACKWARD_INPUT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    backward_input(A, B, part, dx, dy, w, offsets, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_backward_input_rough(
    EXPERTS_BACKWARD_INPUT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    backward_input(A, B, part, dx, dy, w, offsets, args, tile, tid);
}

template <typename T>
static inline void backward_weight(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* dw,
                                   device const float* dy, device const float* x, device const int* offsets,
                                   constant ExpertsBackwardWeight& args, uint3 tile, uint tid) {
    const uint N = args.N, K = args.K, e = tile.z, n0 = tile.y * TILE, k0 = tile.x * TILE;
    const uint end = min(uint(offsets[e + 1]), args.M);
    Sums sums;
    clear(sums);
    for (uint r = uint(offsets[e]); r < end; r += TERMS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        fetch(A, (device const uchar*)dy, 0, end, N, r, n0, TERMS, TILE, TILE_PITCH, tid);
        fetch(B, (device const uchar*)x, 0, end, K, r, k0, TERMS, TILE, TILE_PITCH, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<false, false>(sums, A, B, tid);
    }
    #pragma unroll
    for (uint i = 0; i < OWN; ++i) {
        uint2 place;
        const float sum = sum_of(sums, i, part, tid, place);
        const uint n = n0 + place.x, k = k0 + place.y, to = (e * N + n) * K + k;
        if (n < N && k < K) dw[to] = args.accumulate ? dw[to] + sum : sum;
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_backward_weight(
    EXPERTS_BACKWARD_WEIGHT, uint3 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    backward_weight(A, B, part, dw, dy, x, offsets, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void experts_backward_weight_rough(
    EXPERTS_BACKWARD_WEIGHT, uint3 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    backward_weight(A, B, part, dw, dy, x, offsets, args, tile, tid);
}

kernel void experts_backward_bias(EXPERTS_BACKWARD_BIAS, uint at [[thread_position_in_grid]])
{
    const uint N = args.N;
    if (at >= args.E * N) return;
    const uint e = at / N, n = at % N;
    float sum = args.accumulate ? db[at] : 0.0f;
    for (uint r = uint(offsets[e]); r < min(uint(offsets[e + 1]), args.M); ++r) sum += dy[r * N + n];
    db[at] = sum;
}
