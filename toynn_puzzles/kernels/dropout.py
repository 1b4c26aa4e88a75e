"""A dropout mask that is never stored: a hash of its place."""

import numpy as np

from toynn.backends.reference.pointwise import dropout_factors
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

N = 150


def check(answer: Answer) -> None:
    """Compare masks of parts with the mask of the whole, as toynn's kernel has it."""
    for seed, step, site, p in ((0, 1, 0, 0.5), (7, 3, 2, 0.1)):
        whole = dropout_factors(N, np.array([step, 1]), p, seed, site) > 0
        for first, count in ((0, N), (0, 32), (32, 64), (100, 50), (5, 20)):
            right = whole[first : first + count]
            i = np.arange(first, first + count)
            got = answer("kept", seed, step, site, p, first, count)
            compare(
                "kept",
                got.astype(int) if getattr(got, "dtype", None) == np.bool_ else got,
                right.astype(int),
                where=f", for {count} elements from {first} on with p = {p}",
                suspects={
                    "elements count from the part's begin: add first.": whole[:count].astype(int),
                    "these are the elements that are dropped.": (~right).astype(int),
                    "the second 16 of 32 elements take the low half of the hash, too.": whole[
                        i - i % 32 + i % 16
                    ].astype(int),
                },
            )


PUZZLE = Puzzle(
    title="dropout without a stored mask",
    wanted="""\
Return which of the elements first ... first + count - 1 are kept: an array of bool. It must depend
on seed, step, site, p and the element's own index alone, so that the backward pass, and any thread
at any part, computes the same mask again. mix() and key() are given; they work on arrays.""",
    formula="""\
h = mix(key + 16 (i // 32) + i % 16)          64 bits, which two elements share
kept[i] = (low 32 bits of h if i % 32 < 16 else its high 32 bits) >= int(p 2^32)""",
    code="""
import numpy as np


def mix(x):
    x = np.asarray(x, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key(seed, step, site):
    return mix(mix(mix([seed]) ^ np.uint64(step)) ^ np.uint64(site))


def kept(seed, step, site, p, first, count):
    i = np.arange(first, first + count, dtype=np.uint64)
    # >>>
    h = mix(key(seed, step, site) + i // np.uint64(32) * np.uint64(16) + i % np.uint64(16))
    half = np.where(i % np.uint64(32) < 16, h & np.uint64(0xFFFFFFFF), h >> np.uint64(32))
    return half >= np.uint64(int(float(np.float32(p)) * 2**32))
    # <<<
""",
    hints=(
        "i // 32 is the group, and i % 32 the place within it. Elements i and i + 16 of a group "
        "share a hash.",
        "h & np.uint64(0xFFFFFFFF) is the low half, h >> np.uint64(32) the high half. np.where "
        "chooses between them.",
        "Compare with int(float(np.float32(p)) * 2**32): kernels take p as float32.",
    ),
    why=(
        "Why does one hash serve elements i and i + 16, and not i and i + 1?",
        "16 lanes of a register then write 16 numbers side by side: the low halves, then the high "
        "ones. With i and i + 1 the two would have to be interleaved.",
    ),
    same="_kernels/elements/dropout.pyx",
    check=check,
)
