"""What this CPU and this build can do. The only module that asks the hardware."""

cdef extern from *:
    """
    #include "compiler.h"
    #if TN_GNU && (defined(__x86_64__) || defined(__i386__))
    #define TN_X86 1
    #include <cpuid.h>
    /* Whether CPUID reports these bits in register `which`: 0 EAX, 1 EBX, 2 ECX, 3 EDX. Not
       __builtin_cpu_supports: old compilers know few names, and clang-cl does not link it. */
    static int tn_told_bits(unsigned leaf, unsigned part, int which, unsigned wanted) {
        unsigned r[4];
        if (part && (!__get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]) || r[0] < part))
            return 0;
        return __get_cpuid_count(leaf, part, &r[0], &r[1], &r[2], &r[3])
            && (r[which] & wanted) == wanted;
    }
    /* Whether the system saves these registers when it switches threads: bits of XCR0. */
    static int tn_keeps(unsigned wanted) {
        unsigned low, high;
        if (!tn_told_bits(1, 0, 2, 1u << 27)) /* OSXSAVE */
            return 0;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (low & wanted) == wanted;
    }
    #else
    #define TN_X86 0
    static int tn_told_bits(unsigned leaf, unsigned part, int which, unsigned wanted) { return 0; }
    static int tn_keeps(unsigned wanted) { return 0; }
    #endif
    #define TN_YMM 0x06u
    #if defined(__APPLE__) /* saves AVX-512's registers, and reports it, from their first use on */
    #define TN_ZMM TN_YMM
    #else
    #define TN_ZMM 0xe6u
    #endif
    /* x86-64-v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT. */
    static int tn_has_v2(void) {
        return !TN_X86
            || tn_told_bits(1, 0, 2, 1u | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23);
    }
    /* FMA and F16C; AVX2. */
    static int tn_has_avx2(void) {
        return tn_keeps(TN_YMM) && tn_told_bits(1, 0, 2, 1u << 12 | 1u << 29)
            && tn_told_bits(7, 0, 1, 1u << 5);
    }
    /* AVX512F, DQ, BW and VL. */
    static int tn_has_avx512(void) {
        return tn_has_avx2() && tn_keeps(TN_ZMM)
            && tn_told_bits(7, 0, 1, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31);
    }
    static int tn_has_avx512_bf16(void) {
        return tn_keeps(TN_ZMM) && tn_told_bits(7, 1, 0, 1u << 5);
    }
    static int tn_has_avx512_vnni(void) {
        return tn_keeps(TN_ZMM) && tn_told_bits(7, 0, 2, 1u << 11);
    }
    static int tn_has_avx_vnni(void) { return tn_has_avx2() && tn_told_bits(7, 1, 0, 1u << 4); }
    /* AMX needs two things. The CPU has bits 22 (bfloat16) and 24 (tiles) of EDX. And Linux saves
       8 KB of tiles per thread, if the process asks for it; later threads and children inherit
       that. The numbers below are ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA. */
    static int tn_amx_refusal = 0; /* the errno with which Linux refused memory for tiles */
    #if defined(TN_SOFTWARE_TILES)
    #define TN_SOFTWARE 1
    static int tn_ask_for_amx(void) { return tn_has_avx512_bf16(); }
    static int tn_has_amx_int8(void) { return 1; }
    #elif defined(__linux__) && defined(__x86_64__)
    #define TN_SOFTWARE 0
    #include <errno.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int tn_ask_for_amx(void) {
        if (!tn_has_avx512_bf16() || !tn_told_bits(7, 0, 3, 1u << 22 | 1u << 24))
            return 0;
        if (syscall(SYS_arch_prctl, 0x1023, 18) == 0)
            return 1;
        tn_amx_refusal = errno;
        return 0;
    }
    #else
    #define TN_SOFTWARE 0
    static int tn_ask_for_amx(void) { return 0; }
    #endif
    #if !TN_SOFTWARE
    static int tn_has_amx_int8(void) { return tn_told_bits(7, 0, 3, 1u << 25); }
    #endif
    /* The CPU's vendor (12 letters) and family: bits 8 to 11 of EAX; 15 means add bits 20 to 27. */
    #if TN_X86
    #include <string.h>
    static int tn_family(char vendor[13]) {
        unsigned a = 0, b = 0, c = 0, d = 0, most;
        memset(vendor, 0, 13);
        if (!__get_cpuid(0, &most, &b, &c, &d) || most < 1)
            return 0;
        memcpy(vendor, &b, 4);
        memcpy(vendor + 4, &d, 4);
        memcpy(vendor + 8, &c, 4);
        __get_cpuid(1, &a, &b, &c, &d);
        const int family = a >> 8 & 15;
        return family == 15 ? family + (int)(a >> 20 & 255) : family;
    }
    #else
    static int tn_family(char vendor[13]) { vendor[0] = 0; return 0; }
    #endif
    /* arm64: all CPUs have neon. The system reports the units that gemm_neon.c and dot_neon.c use.
       Linux does so by the bits HWCAP_ASIMDDP, HWCAP2_I8MM and HWCAP2_BF16, macOS by name. */
    #if defined(__aarch64__)
    #define TN_ARM 1
    #else
    #define TN_ARM 0
    #endif
    #if TN_ARM && defined(__linux__)
    #include <sys/auxv.h>
    static int tn_has_sdot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
    static int tn_has_smmla(void) { return getauxval(26 /* AT_HWCAP2 */) >> 13 & 1; }
    static int tn_has_bfmmla(void) { return getauxval(26) >> 14 & 1; }
    #elif TN_ARM && defined(__APPLE__)
    #include <sys/sysctl.h>
    static int tn_told(const char* name) {
        int told = 0;
        size_t size = sizeof told;
        return sysctlbyname(name, &told, &size, NULL, 0) == 0 && told;
    }
    static int tn_has_sdot(void) { return tn_told("hw.optional.arm.FEAT_DotProd"); }
    static int tn_has_smmla(void) { return tn_told("hw.optional.arm.FEAT_I8MM"); }
    static int tn_has_bfmmla(void) { return tn_told("hw.optional.arm.FEAT_BF16"); }
    #else
    static int tn_has_sdot(void) { return 0; }
    static int tn_has_smmla(void) { return 0; }
    static int tn_has_bfmmla(void) { return 0; }
    #endif
    """
    bint tn_has_v2() noexcept
    bint tn_has_avx2() noexcept
    bint tn_has_avx512() noexcept
    bint tn_has_avx512_bf16() noexcept
    bint tn_has_avx512_vnni() noexcept
    bint tn_has_avx_vnni() noexcept
    bint tn_ask_for_amx() noexcept
    bint tn_has_amx_int8() noexcept
    int tn_family(char* vendor) noexcept
    bint TN_ARM
    bint tn_has_sdot() noexcept
    bint tn_has_smmla() noexcept
    bint tn_has_bfmmla() noexcept
    int tn_amx_refusal
    bint TN_SOFTWARE

# What a CPU of this architecture needs to multiply pairs of bfloat16.
PAIRS_NEED = (
    "BFMMLA, the level neon, a build by GCC 10 or clang 16" if TN_ARM
    else "AVX512_BF16, the level avx512, a build by GCC 12 or clang"
)
# The units that multiply 8-bit integers, and the number of each in dot_int8.h.
INT8_UNITS = {"AVX2": 0, "AVX_VNNI": 1, "AVX512_VNNI": 1, "NEON": 0, "SDOT": 1, "SMMLA": 2}

cdef bint _amx = tn_has_avx512() and tn_ask_for_amx()  # once per process


def supported_levels():
    """Return the names of the ISA levels that this CPU can run, lowest first."""
    levels = ["generic"]
    if tn_has_avx2():
        levels.append("avx2")
    if tn_has_avx512():
        levels.append("avx512")
    if _amx:
        levels.append("amx")
    if TN_ARM:
        levels.append("neon")
    return levels


def runs_wheels():
    """Whether the CPU has what NumPy's wheels need since 2.4: on x86-64, x86-64-v2 (of 2009)."""
    return tn_has_v2()


def amx_int8():
    """Whether the tiles of this CPU multiply bytes, too, if it has tiles."""
    return tn_has_amx_int8()


def amx_refusal():
    """Return the errno with which the system refused the CPU's AMX; 0 if it did not."""
    return tn_amx_refusal


def pairs_unit():
    """Return the unit of this CPU that multiplies pairs of bfloat16; "" if it has none."""
    if tn_has_bfmmla():
        return "BFMMLA"
    return "AVX512_BF16" if tn_has_avx512() and tn_has_avx512_bf16() else ""


def int8_unit(int units):
    """Return the unit that multiplies 8-bit integers in a build for AVX2 or neon; "" if none.

    ``units`` is TN_UNITS of dot_int8.h: which other units the build has. 0 is none, 1 AVX_VNNI, 2
    AVX512_VNNI, 3 SDOT and SMMLA.
    """
    if TN_ARM:
        if units != 3 or not tn_has_sdot():
            return "NEON"
        return "SMMLA" if tn_has_smmla() else "SDOT"
    if not tn_has_avx2():
        return ""
    if units == 2 and tn_has_avx512() and tn_has_avx512_vnni():
        return "AVX512_VNNI"
    return "AVX_VNNI" if units == 1 and tn_has_avx_vnni() else "AVX2"


def maker():
    """Return the CPU's vendor in CPUID's 12 letters, and its family; ("", 0) if unknown."""
    cdef char vendor[13]
    cdef int family = tn_family(vendor)
    return vendor.decode("ascii", "replace"), family


def pairs_pay(str vendor, int family):
    """Whether CPUs of a family multiply pairs of bfloat16 at least as fast as floats.

    AMD's do since Zen 4 (family 25): an instruction takes as long as one of floats and has twice
    the terms. On Intel's CPUs it takes four times as long, which is half the rate of floats. Other
    CPUs were not measured and multiply floats. No timing decides this at run time, because the bits
    of a result depend on it.
    """
    return vendor == "AuthenticAMD" and family >= 25


def gains_by_pairs():
    """Whether kernels that may multiply pairs of bfloat16 do: this CPU can, and gains by it.

    On arm64 they do whenever the CPU can: bfmmla has 4 times the terms of a multiply-add of floats.
    Its speed has not been measured yet, so "auto" does not choose it.
    """
    return bool(pairs_unit()) and (TN_ARM or pairs_pay(*maker()))


def software_tiles():
    """Whether the level amx emulates its instructions in plain C (TOYNN_TILES=software)."""
    return bool(TN_SOFTWARE)
