// Shared by all kernels: sums and maxima over a group of threads, the logistic function, erf.
//
// A group has GROUP threads, in lines of LINE; a line is a SIMD group if TOYNN_SIMDGROUPS is set. Every
// thread of a group calls a reduction, and every thread gets the same bits. Reductions end with a barrier, so
// `part`, GROUP floats of threadgroup memory, is free again.
// NaN stays NaN in all of these except the maxima, which ignore it, as on the CPU.
//
// Kernels with many sums per thread declare their number of threads, so that the compiler finds registers for all.
#include <metal_stdlib>
#if TOYNN_SIMDGROUPS
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#endif
using namespace metal;

constant constexpr uint GROUP = 256;
constant constexpr uint LINE = 32;

// The sum over the group: partial sums in groups of 16, as on the CPU.
static inline float group_sum(float value, threadgroup float* part, uint tid) {
#if TOYNN_SIMDGROUPS
    value = simd_sum(value);
    if (tid % LINE == 0) part[tid / LINE] = value;
    const uint parts = GROUP / LINE;
#else
    const uint parts = 16;
    part[tid] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < parts) {
        float sum = part[tid];
        for (uint i = 1; i < GROUP / parts; ++i) sum += part[tid + i * parts];
        part[tid] = sum;
    }
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = part[0];
    for (uint i = 1; i < parts; ++i) total += part[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

// The maximum over the group.
static inline float group_max(float value, threadgroup float* part, uint tid) {
#if TOYNN_SIMDGROUPS
    value = simd_max(value);
    if (tid % LINE == 0) part[tid / LINE] = value;
    const uint parts = GROUP / LINE;
#else
    const uint parts = 16;
    part[tid] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < parts) {
        float most = part[tid];
        for (uint i = 1; i < GROUP / parts; ++i) most = max(most, part[tid + i * parts]);
        part[tid] = most;
    }
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float most = part[0];
    for (uint i = 1; i < parts; ++i) most = max(most, part[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return most;
}

// The sum over a line.
static inline float line_sum(float value, threadgroup float* part, uint tid) {
#if TOYNN_SIMDGROUPS
    return simd_sum(value);
#else
    part[tid] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < LINE; ++i) total += part[tid - tid % LINE + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
#endif
}

// The maximum over a line.
static inline float line_max(float value, threadgroup float* part, uint tid) {
#if TOYNN_SIMDGROUPS
    return simd_max(value);
#else
    part[tid] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float most = -INFINITY;
    for (uint i = 0; i < LINE; ++i) most = max(most, part[tid - tid % LINE + i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return most;
#endif
}

// The sum over the threads in the same place of all lines: over a column.
static inline float column_sum(float value, threadgroup float* part, uint tid) {
    part[tid] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint line = 0; line < GROUP / LINE; ++line) total += part[line * LINE + tid % LINE];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

// 1 / (1 + e^-x).
static inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

// s = 1 / (1 + e^-x), and its slope s (1 - s) without cancellation in 1 - s for large x.
static inline float sigmoid_slope(float x, thread float& slope) {
    const float e = precise::exp(-fabs(x));  // never infinite
    const float q = 1.0f / (1.0f + e);
    slope = e * q * q;
    return x > 0.0f ? q : e * q;
}

// erf(x) within 5 units in the last place: x p(x^2) / q(x^2), as in _common.pxd.
static inline float erf_(float x) {
    const float t = x * x;
    float p = 2.0257353e-06f;
    p = p * t + 2.8466540e-04f;
    p = p * t + 3.8078964e-03f;
    p = p * t + 5.2874626e-02f;
    p = p * t + 1.9154646e-01f;
    p = p * t + 1.1283791e+00f;
    float q = 3.7828814e-05f;
    q = q * t + 1.1706297e-03f;
    q = q * t + 1.5054591e-02f;
    q = q * t + 1.1455775e-01f;
    q = q * t + 5.0308629e-01f;
    q = q * t + 1.0f;
    return x > 3.95f ? 1.0f : (x < -3.95f ? -1.0f : x * p / q);
}
