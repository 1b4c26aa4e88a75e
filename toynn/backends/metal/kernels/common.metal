// What several kernels need. This stands in front of each op's file when it is compiled.
#include <metal_stdlib>
#if TOYNN_SIMDGROUPS
#include <metal_simdgroup_matrix>
#endif
using namespace metal;

constant uint GROUP = 256;  // threads of a group, unless grids.py says otherwise

// Sum over a group of GROUP threads, the same in all of them. part is free again when it returns.
static inline float group_sum(float x, threadgroup float* part, uint tid)
{
    part[tid] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = GROUP / 2; step > 0; step /= 2) {
        if (tid < step) part[tid] += part[tid + step];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float sum = part[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}
