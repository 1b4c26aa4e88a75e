"""Hashes: random-looking integers from a seed and a counter, without a state to carry along.

Source: Steele, Lea & Flood 2014, Fast splittable pseudorandom number generators, section 5.
"""
cimport cython
from libc.stdint cimport uint64_t


@cython.overflowcheck(False)
cdef inline uint64_t splitmix(uint64_t x) noexcept nogil:
    """A bijection of the 64-bit integers that mixes all bits into all others."""
    x = x + <uint64_t>0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t hashed(uint64_t seed, uint64_t a, uint64_t b) noexcept nogil:
    """Hash three integers to one."""
    return splitmix(splitmix(splitmix(seed) ^ a) ^ b)
