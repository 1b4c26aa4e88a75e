// The part of Metal's standard library that the shaders use. It includes no header of C or C++, so
// that a name which Metal lacks (erf, printf, std::) is unknown here too.
#pragma once
#include "msl_types.h"

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT __FLT_MAX__
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define M_PI_F 3.14159265358979323846f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define INT_MAX __INT_MAX__
#define UINT_MAX (__INT_MAX__ * 2u + 1u)

namespace metal {

#define SOFT_MATHS(name) \
    SOFT_INLINE float name(float x) { return __builtin_##name##f(x); } \
    SOFT_INLINE half name(half x) { return (half)__builtin_##name##f((float)x); }
SOFT_MATHS(exp) SOFT_MATHS(exp2) SOFT_MATHS(log) SOFT_MATHS(log2) SOFT_MATHS(sqrt) SOFT_MATHS(tanh)
SOFT_MATHS(sin) SOFT_MATHS(cos) SOFT_MATHS(fabs) SOFT_MATHS(floor) SOFT_MATHS(ceil) SOFT_MATHS(rint)
SOFT_MATHS(round) SOFT_MATHS(trunc)
SOFT_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
SOFT_INLINE float pow(float a, float b) { return __builtin_powf(a, b); }
SOFT_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SOFT_INLINE float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
SOFT_INLINE float fmin(float a, float b) { return __builtin_fminf(a, b); }
SOFT_INLINE float ldexp(float a, int b) { return __builtin_ldexpf(a, b); }
SOFT_INLINE float copysign(float a, float b) { return __builtin_copysignf(a, b); }
SOFT_INLINE float divide(float a, float b) { return a / b; }
SOFT_INLINE bool isnan(float a) { return __builtin_isnan(a); }
SOFT_INLINE bool isinf(float a) { return __builtin_isinf(a); }
SOFT_INLINE bool isfinite(float a) { return __builtin_isfinite(a); }
#define SOFT_ORDER(T) \
    SOFT_INLINE T max(T a, T b) { return a < b ? b : a; } \
    SOFT_INLINE T min(T a, T b) { return b < a ? b : a; } \
    SOFT_INLINE T clamp(T x, T a, T b) { return min(max(x, a), b); } \
    SOFT_INLINE T select(T a, T b, bool c) { return c ? b : a; }
SOFT_ORDER(float) SOFT_ORDER(half) SOFT_ORDER(int) SOFT_ORDER(uint) SOFT_ORDER(short)
SOFT_ORDER(ushort) SOFT_ORDER(long) SOFT_ORDER(ulong)
SOFT_INLINE int abs(int a) { return a < 0 ? -a : a; }
SOFT_INLINE float abs(float a) { return __builtin_fabsf(a); }
SOFT_INLINE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
SOFT_INLINE float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
SOFT_INLINE uint popcount(uint a) { return __builtin_popcount(a); }
SOFT_INLINE uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
template <class To, class From> SOFT_INLINE To soft_as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

#define SOFT_AS_METAL \
    using metal::cos; using metal::divide; using metal::exp; using metal::exp2; using metal::fma; \
    using metal::log; using metal::log2; using metal::pow; using metal::rsqrt; using metal::sin; \
    using metal::sqrt; using metal::tanh;
namespace precise { SOFT_AS_METAL }
namespace fast { SOFT_AS_METAL }

// Not inlined: the address to which a call returns tells one barrier from another. So the compiler
// may not make two calls of one either.
#define SOFT_CALL static __attribute__((noinline, convergent, noduplicate))
#define SOFT_OWN SOFT_CALL __attribute__((no_sanitize("thread"))) // looks at what is the thread's own alone
#define SOFT_SITE __builtin_return_address(0)
enum class mem_flags { mem_none = 0, mem_device = SOFT_DEVICE, mem_threadgroup = SOFT_THREADGROUP };
SOFT_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
SOFT_CALL void threadgroup_barrier(mem_flags memory) { soft_barrier((int)memory, SOFT_SITE); }
SOFT_CALL void simdgroup_barrier(mem_flags memory) { soft_simd_barrier((int)memory, SOFT_SITE); }

#if TOYNN_SIMDGROUPS  // unknown names where a shader is to do without
#include "msl_simdgroups.h"
#endif

} // namespace metal

// -- How a kernel is called: each argument from where its attribute says. Types are deduced. -------

namespace soft {

template <class T> struct Number { static T of(soft_size n) { return (T)n.x; } };
#define SOFT_NUMBERS(T) \
    template <> struct Number<T##2> { static T##2 of(soft_size n) { return T##2{(T)n.x, (T)n.y}; } }; \
    template <> struct Number<T##3> { \
        static T##3 of(soft_size n) { return T##3{(T)n.x, (T)n.y, (T)n.z}; } \
    };
SOFT_NUMBERS(uint) SOFT_NUMBERS(ushort)

template <class T> struct Argument {
    static T get(const soft_argument &a) { return Number<T>::of(soft_number(a.source)); }
};
template <class T> struct Argument<T *> {
    static T *get(const soft_argument &a) { return (T *)soft_buffer(a.index, 0); }
};
template <class T> struct Argument<T &> {
    static T &get(const soft_argument &a) { return *(T *)soft_buffer(a.index, sizeof(T)); }
};

template <int... I> struct Sequence {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Sequence<I...> type; };
template <class... A, int... I>
inline void call(void (*f)(A...), const soft_argument *a, Sequence<I...>) {
    f(Argument<A>::get(a[I])...);
}
template <class... A> inline void call(void (*f)(A...), const soft_argument *a) {
    call(f, a, typename Count<sizeof...(A)>::type());
}

} // namespace soft
