// Metal's types and address spaces, for clang.
#pragma once
#include "runtime.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef _Float16 half;
#ifdef SOFT_STRICT
typedef __bf16 bfloat; // to look at types only: arithmetic would need a newer libgcc
#else
struct bfloat {
    ushort bits;
    bfloat() = default;
    bfloat(float x) { // ties go to the even neighbour
        uint u = __builtin_bit_cast(uint, x);
        bits = x == x ? (u + 0x7FFF + (u >> 16 & 1)) >> 16 : u >> 16 | 64;
    }
    operator float() const { return __builtin_bit_cast(float, (uint)bits << 16); }
};
#endif

#define SOFT_VECTORS(T) \
    typedef T T##2 __attribute__((ext_vector_type(2))); \
    typedef T T##3 __attribute__((ext_vector_type(3))); \
    typedef T T##4 __attribute__((ext_vector_type(4)));
SOFT_VECTORS(float) SOFT_VECTORS(half) SOFT_VECTORS(int) SOFT_VECTORS(uint) SOFT_VECTORS(short)
SOFT_VECTORS(ushort) SOFT_VECTORS(char) SOFT_VECTORS(uchar) SOFT_VECTORS(long) SOFT_VECTORS(ulong)

// SOFT_STRICT: a pass that only looks whether address spaces agree; then one that runs without them.
#ifdef SOFT_STRICT
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#define SOFT_THREADGROUP_VARIABLE(id, T, name, extents) static threadgroup T name extents
#else
#define device
#define constant const
#define threadgroup
#define SOFT_THREADGROUP_VARIABLE(id, T, name, extents) \
    typedef T soft_type_##name extents; \
    soft_type_##name &name = *(soft_type_##name *)soft_threadgroup(id, sizeof(soft_type_##name))
#endif
#define thread
#define kernel

// Constructors: a macro with arguments leaves the type's plain name alone.
#define SOFT_INLINE static inline __attribute__((always_inline))
#define SOFT_MAKE(T) \
    SOFT_INLINE T##4 soft_##T##4(T a, T b, T c, T d) { return T##4{a, b, c, d}; } \
    SOFT_INLINE T##4 soft_##T##4(T a) { return T##4{a, a, a, a}; } \
    SOFT_INLINE T##4 soft_##T##4(T##2 a, T##2 b) { return T##4{a.x, a.y, b.x, b.y}; } \
    SOFT_INLINE T##4 soft_##T##4(T##3 a, T b) { return T##4{a.x, a.y, a.z, b}; } \
    SOFT_INLINE T##3 soft_##T##3(T a, T b, T c) { return T##3{a, b, c}; } \
    SOFT_INLINE T##3 soft_##T##3(T a) { return T##3{a, a, a}; } \
    SOFT_INLINE T##2 soft_##T##2(T a, T b) { return T##2{a, b}; } \
    SOFT_INLINE T##2 soft_##T##2(T a) { return T##2{a, a}; } \
    template <class V> SOFT_INLINE decltype(V().w, T##4()) soft_##T##4(V v) { \
        return __builtin_convertvector(v, T##4); \
    }
SOFT_MAKE(float) SOFT_MAKE(half) SOFT_MAKE(int) SOFT_MAKE(uint) SOFT_MAKE(uchar) SOFT_MAKE(ushort)
#define float2(...) soft_float2(__VA_ARGS__)
#define float3(...) soft_float3(__VA_ARGS__)
#define float4(...) soft_float4(__VA_ARGS__)
#define half2(...) soft_half2(__VA_ARGS__)
#define half4(...) soft_half4(__VA_ARGS__)
#define int2(...) soft_int2(__VA_ARGS__)
#define int4(...) soft_int4(__VA_ARGS__)
#define uint2(...) soft_uint2(__VA_ARGS__)
#define uint3(...) soft_uint3(__VA_ARGS__)
#define uint4(...) soft_uint4(__VA_ARGS__)
#define as_type metal::soft_as_type
