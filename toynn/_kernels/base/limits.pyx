"""Peak rates of this CPU at the ISA level in use: loops to be timed, not an op.

    multiply_adds   s <- s x + y in registers      peak of float32 multiply-adds
    multiply_pairs  s <- s + p . p in registers    the same for pairs of bfloat16
    multiply_tiles  C <- C + A B in AMX's tiles    the same for tiles of such pairs
    read            sum_i x[i]                     peak of reading memory
    update          y[i] <- y[i] + x[i]            each cache line of y is read and written
    triad           y[i] <- a[i] + 2 b[i]          y is written without being read

The first three return (flops, result). read returns (bytes, result), update and triad bytes: those
that the loop itself reads and writes. ``repeats`` goes over the arrays again, each thread over its
own part: so arrays that fit in a thread's cache measure that cache. Results are returned or
written, since the compiler may remove a loop whose result is not used.

After McCalpin's STREAM (1995) and Williams, Waterman & Patterson's roofline,
doi:10.1145/1498765.1498785.
"""
from toynn._kernels.base._address cimport at1
from toynn._kernels.base._parallel cimport deal, part_fn

import numpy as np

from toynn._kernels.base._check import check
from toynn._kernels.base.cpu import PAIRS_NEED, pairs_unit

cdef extern from "peaks.h" nogil:
    enum:
        V "TN_V"
        CHAINS "TN_CHAINS"
        PAIR_FLOPS "TN_PAIR_FLOPS"
    bint HAS_PAIRS "TN_PAIRS"
    bint HAS_TILES "TN_HAS_TILES"
    float _multiply_adds "tn_multiply_adds" (Py_ssize_t rounds, float x, float y) noexcept
    float _multiply_pairs "tn_multiply_pairs" (Py_ssize_t rounds, float pair) noexcept
    float _multiply_tiles "tn_multiply_in_tiles" (Py_ssize_t rounds, float pair) noexcept
    float _read "tn_read" (const float* x, Py_ssize_t n, Py_ssize_t repeats) noexcept

cdef enum:
    LINE = 16  # floats in a cache line: threads share none
    TILE_FLOPS = 4 * 2 * 16 * 16 * 32  # of a round: four products of tiles

cdef union _Pair:
    unsigned int bits
    float f

cdef _Pair ones  # two bfloat16
ones.bits = 0x3F803F80


cdef inline void _update(float* y, const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] += x[i]


cdef inline void _triad(float* y, const float* a, const float* b, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = a[i] + 2 * b[i]


cdef inline Py_ssize_t _start(Py_ssize_t n, int part, int parts) noexcept nogil:
    """Return where a thread's part of n floats begins."""
    return n if part == parts else n // LINE * part // parts * LINE


cdef struct Loop:
    float* y
    const float* a
    const float* b
    Py_ssize_t n        # floats
    Py_ssize_t repeats  # or rounds
    int parts
    float x0, y0        # or a pair
    double* sums        # of the parts


cdef void _add_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part
    for part in range(first, last):
        it.sums[part] = _multiply_adds(it.repeats, it.x0, it.y0)


cdef void _pair_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part
    for part in range(first, last):
        it.sums[part] = _multiply_pairs(it.repeats, it.x0)


cdef void _tile_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part
    for part in range(first, last):
        it.sums[part] = _multiply_tiles(it.repeats, it.x0)


cdef void _read_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part, at
    for part in range(first, last):
        at = _start(it.n, part, it.parts)
        it.sums[part] = _read(it.a + at, _start(it.n, part + 1, it.parts) - at, it.repeats)


cdef void _update_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part, at, _r
    for part in range(first, last):
        at = _start(it.n, part, it.parts)
        for _r in range(it.repeats):
            _update(it.y + at, it.a + at, _start(it.n, part + 1, it.parts) - at)


cdef void _triad_parts(void* loop, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Loop* it = <Loop*>loop
    cdef Py_ssize_t part, at, _r
    for part in range(first, last):
        at = _start(it.n, part, it.parts)
        for _r in range(it.repeats):
            _triad(it.y + at, it.a + at, it.b + at, _start(it.n, part + 1, it.parts) - at)


cdef double _run(part_fn parts, Loop loop, int n_threads):
    """Run a loop on n_threads threads; return the total of its parts' sums."""
    cdef double[::1] sums = np.zeros(n_threads)
    loop.parts, loop.sums = n_threads, &sums[0]
    with nogil:
        deal(parts, &loop, n_threads, n_threads, 1, False)
    return sum(sums)


def has_pairs():
    """Whether this CPU, at this level, multiplies pairs of bfloat16."""
    return bool(HAS_PAIRS and pairs_unit())


def multiply_adds(Py_ssize_t rounds, float x=1, float y=1, int n_threads=1):
    """Return how many flops were done, and the sum of all s of all threads."""
    cdef double total
    check("limits.multiply_adds", "rounds", n_threads)
    total = _run(_add_parts, Loop(NULL, NULL, NULL, 0, rounds, 0, x, y), n_threads)
    return 2 * CHAINS * V * rounds * n_threads, total


def multiply_pairs(Py_ssize_t rounds, int n_threads=1):
    """Return how many flops were done with pairs (1, 1), and the sum of all s of all threads.

    Raises ValueError where has_pairs() is false.
    """
    cdef double total
    check("limits.multiply_pairs", "rounds", n_threads)
    if not has_pairs():
        raise ValueError(f"limits.multiply_pairs: needs {PAIRS_NEED}")
    total = _run(_pair_parts, Loop(NULL, NULL, NULL, 0, rounds, 0, ones.f), n_threads)
    return PAIR_FLOPS * CHAINS * V * rounds * n_threads, total


def has_tiles():
    """Whether this level multiplies tiles: then this CPU has AMX, or software does it."""
    return bool(HAS_TILES)


def multiply_tiles(Py_ssize_t rounds, int n_threads=1):
    """Return how many flops were done with pairs (1, 1), and the sum of all C of all threads.

    Raises ValueError where has_tiles() is false.
    """
    cdef double total
    check("limits.multiply_tiles", "rounds", n_threads)
    if not has_tiles():
        raise ValueError("limits.multiply_tiles: needs the ISA level amx")
    total = _run(_tile_parts, Loop(NULL, NULL, NULL, 0, rounds, 0, ones.f), n_threads)
    return TILE_FLOPS * rounds * n_threads, total


def read(const float[::1] x, Py_ssize_t repeats=1, int n_threads=1):
    """Return the bytes read, and the sum of x times ``repeats``."""
    cdef Py_ssize_t n = x.shape[0]
    check("limits.read", f"x ({n},)", n_threads)
    total = _run(_read_parts, Loop(NULL, <float*>at1(x), NULL, n, repeats), n_threads)
    return n * repeats * sizeof(float), total


def update(float[::1] y, const float[::1] x, Py_ssize_t repeats=1, int n_threads=1):
    """Add x (n,) to y (n,) ``repeats`` times; return the bytes read and written."""
    cdef Py_ssize_t n = x.shape[0]
    check("limits.update", f"x ({n},)", n_threads, y=(y, (n,)))
    _run(_update_parts, Loop(<float*>at1(y), <float*>at1(x), NULL, n, repeats), n_threads)
    return 3 * n * repeats * sizeof(float)


def triad(
    float[::1] y, const float[::1] a, const float[::1] b, Py_ssize_t repeats=1, int n_threads=1
):
    """Overwrite y (n,) ``repeats`` times; return the bytes read and written.

    The CPU also fetches each line of y before it is written; those bytes are not counted.
    """
    cdef Py_ssize_t n = a.shape[0]
    check("limits.triad", f"a ({n},)", n_threads, y=(y, (n,)), b=(b, (n,)))
    _run(
        _triad_parts, Loop(<float*>at1(y), <float*>at1(a), <float*>at1(b), n, repeats), n_threads
    )
    return 3 * n * repeats * sizeof(float)
