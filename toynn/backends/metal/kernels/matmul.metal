// The three products of a linear layer, with bias and GELU applied to the sums.
//
//   forward           y[m,n]  = act(sum_k x[m,k] w[n,k] + b[n]);  pre = the argument of act
//   backward_input    dx[m,k] = sum_n dy[m,n] w[n,k]
//   backward_weight   dw[n,k] = sum_m dy[m,n] x[m,k]
//
// M rows, N outputs, K inputs; a group of PRODUCT threads for TILE x TILE results (products.metal). y is
// overwritten; dx and dw are overwritten, or added to. w may have any type of quantized.metal: it is dequantized
// when it is copied to threadgroup memory. If x has few rows (forward_gemv), a tile would be mostly empty. Then a
// line of threads computes one output, and reads its row of w once. With precision "medium" (the functions named
// rough), copying to threadgroup memory rounds both sides to bfloat16, if Metal has the type. Sums are float32. So
// a result is off by about 2^-9 of its terms' size.
// Source: products.metal.
#include "activations.metal"
#include "products.metal"

constant constexpr uint GEMV_ROWS = 4;  // grids.py knows it too

static inline float activated(float x, uint activation) {
    return activation == 0 ? x : (activation == 1 ? gelu_tanh(x) : gelu_exact(x));
}

template <typename T>
static inline void forward(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* y,
                           device float* pre, device const float* x, device const uchar* w, device const float* b,
                           constant MatmulForward& args, uint2 tile, uint tid) {
    const uint m0 = tile.y * TILE, n0 = tile.x * TILE;
    Sums sums;
    clear(sums);
    for (uint k = 0; k < args.K; k += TERMS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        fetch(A, (device const uchar*)x, 0, args.M, args.K, m0, k, TILE, TERMS, PITCH, tid);
        fetch(B, w, args.type, args.N, args.K, n0, k, TILE, TERMS, PITCH, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<true, true>(sums, A, B, tid);
    }
    #pragma unroll
    for (uint e = 0; e < OWN; ++e) {
        uint2 place;
        float sum = sum_of(sums, e, part, tid, place);
        const uint m = m0 + place.x, n = n0 + place.y;
        if (m >= args.M || n >= args.N) continue;
        if (args.has_b) sum += b[n];
        if (args.has_pre) pre[m * args.N + n] = sum;
        y[m * args.N + n] = activated(sum, args.activation);
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_forward(
    MATMUL_FORWARD, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    if (tile.y * TILE >= args.M) return;
    forward(A, B, part, y, pre, x, w, b, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_forward_rough(
    MATMUL_FORWARD, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    if (tile.y * TILE >= args.M) return;
    forward(A, B, part, y, pre, x, w, b, args, tile, tid);
}

kernel void matmul_forward_gemv(
    MATMUL_FORWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint K = args.K, n = group * (GROUP / LINE) + tid / LINE;
    float sums[GEMV_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f}, run[RUN];
    if (n < args.N) {
        for (uint k = tid % LINE * RUN; k < K; k += LINE * RUN) {
            dequantize(run, w, args.type, n, K, k);
            for (uint m = 0; m < args.M; ++m) {
                for (uint i = 0; i < min(RUN, K - k); ++i) sums[m] = fma(x[m * K + k + i], run[i], sums[m]);
            }
        }
    }
    for (uint m = 0; m < args.M; ++m) {
        float sum = line_sum(sums[m], part, tid);
        if (tid % LINE != 0 || n >= args.N) continue;
        if (args.has_b) sum += b[n];
        if (args.has_pre) pre[m * args.N + n] = sum;
        y[m * args.N + n] = activated(sum, args.activation);
    }
}

template <typename T>
static inline void backward_input(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* dx,
                                  device const float* dy, device const uchar* w,
                                  constant MatmulBackwardInput& args, uint2 tile, uint tid) {
    const uint m0 = tile.y * TILE, k0 = tile.x * TILE;
    Sums sums;
    clear(sums);
    for (uint n = 0; n < args.N; n += TERMS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        fetch(A, (device const uchar*)dy, 0, args.M, args.N, m0, n, TILE, TERMS, PITCH, tid);
        fetch(B, w, args.type, args.N, args.K, n, k0, TERMS, TILE, TILE_PITCH, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<true, false>(sums, A, B, tid);
    }
    #pragma unroll
    for (uint e = 0; e < OWN; ++e) {
        uint2 place;
        const float sum = sum_of(sums, e, part, tid, place);
        const uint m = m0 + place.x, k = k0 + place.y, at = m * args.K + k;
        if (m < args.M && k < args.K) dx[at] = args.accumulate ? dx[at] + sum : sum;
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_backward_input(
    MATMUL_BACKWARD_INPUT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    if (tile.y * TILE >= args.M) return;
    backward_input(A, B, part, dx, dy, w, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_backward_input_rough(
    MATMUL_BACKWARD_INPUT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    if (tile.y * TILE >= args.M) return;
    backward_input(A, B, part, dx, dy, w, args, tile, tid);
}

template <typename T>
static inline void backward_weight(threadgroup T* A, threadgroup T* B, threadgroup float* part, device float* dw,
                                   device const float* dy, device const float* x,
                                   constant MatmulBackwardWeight& args, uint2 tile, uint tid) {
    const uint n0 = tile.y * TILE, k0 = tile.x * TILE;
    Sums sums;
    clear(sums);
    for (uint m = 0; m < args.M; m += TERMS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        fetch(A, (device const uchar*)dy, 0, args.M, args.N, m, n0, TERMS, TILE, TILE_PITCH, tid);
        fetch(B, (device const uchar*)x, 0, args.M, args.K, m, k0, TERMS, TILE, TILE_PITCH, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply<false, false>(sums, A, B, tid);
    }
    #pragma unroll
    for (uint e = 0; e < OWN; ++e) {
        uint2 place;
        const float sum = sum_of(sums, e, part, tid, place);
        const uint n = n0 + place.x, k = k0 + place.y, at = n * args.K + k;
        if (n < args.N && k < args.K) dw[at] = args.accumulate ? dw[at] + sum : sum;
    }
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_backward_weight(
    MATMUL_BACKWARD_WEIGHT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float A[ROOM], B[ROOM], part[256];
    backward_weight(A, B, part, dw, dy, x, args, tile, tid);
}

[[max_total_threads_per_threadgroup(PRODUCT)]]
kernel void matmul_backward_weight_rough(
    MATMUL_BACKWARD_WEIGHT, uint2 tile [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup rough A[ROOM], B[ROOM];
    threadgroup float part[256];
    backward_weight(A, B, part, dw, dy, x, args, tile, tid);
}
