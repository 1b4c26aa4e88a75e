"""Random numbers: the stream of the reference program's "lcg" init, normal and uniform values.

lcg_uniform   s <- (1103515245 s + 12345) mod 2^31;  out[i] = scale ((s >> 8) / 2^23 - 1)
normal        (u1, u2) from xorshift64;  r = std sqrt(-2 ln u1);
              out[2i] = r cos(2 pi u2), out[2i+1] = r sin(2 pi u2)
uniform       out[i] = bound (2 u - 1), u from xorshift64

s >> 8 is below 2^23, so lcg_uniform gives values in [-1, 0) scale. That stays: the reference
program's loss curves depend on it. In normal and uniform, each block of 4096 values has its own
xorshift64 state: splitmix64 over seed, stream and block. So seed 0 is as good as any, and no thread
waits for another. Computed in float64, stored in float32.
The values depend neither on threads nor on the ISA level, only on the C library's log, sin and cos.
Sources: ISO C's example of rand (7.22.2.2); Marsaglia 2003, Xorshift RNGs, J. Stat. Softw. 8(14);
Steele, Lea & Flood 2014, Fast splittable pseudorandom number generators; Box & Muller 1958.
"""
cimport cython
from libc.math cimport M_PI, cos, log, sin, sqrt
from libc.stdint cimport uint64_t

from toynn._kernels.base._address cimport at1
from toynn._kernels.base._hash cimport hashed
from toynn._kernels.base._parallel cimport deal, part_fn

from toynn._kernels.base._check import check

cdef enum:
    BLOCK = 4096  # values per task and state; even, so that no pair is cut in two

cdef struct Stream:
    float* out
    Py_ssize_t n
    uint64_t seed, stream  # for lcg_uniform: the state, and 0
    double scale           # for normal: std; for uniform: bound

cdef uint64_t LCG_MASK = 0x7FFFFFFF
cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15

SEEDS = 0xFFFFFFFFFFFFFFFF


@cython.overflowcheck(False)
cdef inline uint64_t _lcg_next(uint64_t s) noexcept nogil:
    return (s * 1103515245 + 12345) & LCG_MASK


@cython.overflowcheck(False)
cdef inline uint64_t _lcg_skip(uint64_t s, Py_ssize_t steps) noexcept nogil:
    """Return the state after ``steps`` steps: s -> a s + c composed with itself, by squaring."""
    cdef uint64_t a = 1103515245, c = 12345
    while steps > 0:
        if steps & 1:
            s = (a * s + c) & LCG_MASK
        c = (a * c + c) & LCG_MASK
        a = (a * a) & LCG_MASK
        steps = steps >> 1
    return s


@cython.overflowcheck(False)
cdef inline uint64_t _xorshift(uint64_t x) noexcept nogil:
    x = x ^ (x << 13)
    x = x ^ (x >> 7)
    return x ^ (x << 17)


cdef inline uint64_t _seeded(uint64_t seed, uint64_t stream, uint64_t block) noexcept nogil:
    """Return a state of xorshift64, which may be anything but 0."""
    cdef uint64_t state = hashed(seed, stream, block)
    return state if state else GOLDEN


cdef inline double _unit(uint64_t x) noexcept nogil:
    """Return a number in (0, 1] from the upper 53 bits; never 0, so its ln is finite."""
    return <double>((x >> 11) + 1) * (1.0 / 9007199254740992.0)


cdef inline void _block_lcg(float* out, uint64_t s, double scale, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        s = _lcg_next(s)
        out[i] = <float>((<double>(s >> 8) / 8388608.0 - 1.0) * scale)


cdef inline void _block_normal(float* out, uint64_t x, double std, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    cdef double r, angle
    for i in range((size + 1) // 2):
        x = _xorshift(x)
        r = std * sqrt(-2.0 * log(_unit(x)))
        x = _xorshift(x)
        angle = 2.0 * M_PI * _unit(x)
        out[2 * i] = <float>(r * cos(angle))
        if 2 * i + 1 < size:
            out[2 * i + 1] = <float>(r * sin(angle))


cdef inline void _block_uniform(
    float* out, uint64_t x, double bound, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        x = _xorshift(x)
        out[i] = <float>(bound * (2.0 * _unit(x) - 1.0))


cdef void _blocks_lcg(void* stream, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Stream* s = <const Stream*>stream
    cdef Py_ssize_t b, i
    for b in range(first, last):
        i = b * BLOCK
        _block_lcg(s.out + i, _lcg_skip(s.seed, i), s.scale, min(BLOCK, s.n - i))


cdef void _blocks_normal(void* stream, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Stream* s = <const Stream*>stream
    cdef Py_ssize_t b, i
    for b in range(first, last):
        i = b * BLOCK
        _block_normal(s.out + i, _seeded(s.seed, s.stream, b), s.scale, min(BLOCK, s.n - i))


cdef void _blocks_uniform(void* stream, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Stream* s = <const Stream*>stream
    cdef Py_ssize_t b, i
    for b in range(first, last):
        i = b * BLOCK
        _block_uniform(s.out + i, _seeded(s.seed, s.stream, b), s.scale, min(BLOCK, s.n - i))


cdef inline void _draw(part_fn blocks, Stream s, int n_threads) noexcept nogil:
    deal(blocks, &s, (s.n + BLOCK - 1) // BLOCK, n_threads, 1, False)


def lcg_uniform(float[::1] out, state, double scale=1.0, int n_threads=1):
    """Overwrite out (n,); return the state that continues the stream in the next array."""
    cdef Stream s = Stream(<float*>at1(out), out.shape[0], state & LCG_MASK, 0, scale)
    check("random.lcg_uniform", f"out ({s.n},)", n_threads)
    with nogil:
        _draw(_blocks_lcg, s, n_threads)
    return _lcg_skip(s.seed, s.n)


def normal(float[::1] out, seed, stream=0, double std=1.0, int n_threads=1):
    """Overwrite out (n,) with normal values of mean 0; seed and stream are integers mod 2^64."""
    cdef Stream s = Stream(<float*>at1(out), out.shape[0], seed & SEEDS, stream & SEEDS, std)
    check("random.normal", f"out ({s.n},)", n_threads)
    with nogil:
        _draw(_blocks_normal, s, n_threads)


def uniform(float[::1] out, seed, stream=0, double bound=1.0, int n_threads=1):
    """Overwrite out (n,) with values from -bound to bound; seed and stream as for normal."""
    cdef Stream s = Stream(<float*>at1(out), out.shape[0], seed & SEEDS, stream & SEEDS, bound)
    check("random.uniform", f"out ({s.n},)", n_threads)
    with nogil:
        _draw(_blocks_uniform, s, n_threads)
