"""What this CPU and this build can do. The only module that asks the hardware."""

cdef extern from *:
    """
    #if (defined(__GNUC__)) && (defined(__x86_64__) || defined(__i386__))
    static int tn_has_avx2(void) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    static int tn_has_avx512(void) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
    #else
    static int tn_has_avx2(void) { return 0; }
    static int tn_has_avx512(void) { return 0; }
    #endif
    /* The first compilers that know it by this name: GCC 11, clang 10. */
    #if (defined(__x86_64__) || defined(__i386__)) && \\
        (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 11))
    static int tn_has_avx512_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }
    #else
    static int tn_has_avx512_bf16(void) { return 0; }
    #endif
    #ifdef _OPENMP
    #define TN_OPENMP 1
    #else
    #define TN_OPENMP 0
    #endif
    """
    bint tn_has_avx2() noexcept
    bint tn_has_avx512() noexcept
    bint tn_has_avx512_bf16() noexcept
    bint TN_OPENMP


def supported_levels():
    """Names of the ISA levels that this CPU can run, worst first."""
    levels = ["generic"]
    if tn_has_avx2():
        levels.append("avx2")
    if tn_has_avx512():
        levels.append("avx512")
    return levels


def has_avx512_bf16():
    """Whether this CPU multiplies pairs of bfloat16, beside having the level avx512."""
    return bool(tn_has_avx512() and tn_has_avx512_bf16())


def has_openmp():
    """Whether the kernels were built with OpenMP."""
    return bool(TN_OPENMP)
