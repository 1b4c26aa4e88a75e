"""A block of Q4_K: 144 bytes that hold 256 numbers."""

import numpy as np

from toynn.testing.cases.quants import matrix
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

Q4_K = 12  # ggml's number of the type


def check(answer: Answer) -> None:
    """Compare blocks of random bytes with the gguf library's numbers."""
    for seed in (0, 1):
        _, raw, exact = matrix(np.random.default_rng(seed), Q4_K, 1, 256)
        block, right = raw[0], exact[0]
        d, dmin = block[:4].view("<f2").astype(float)
        scales, mins, nibbles = _parts(block)
        numbers = nibbles.reshape(8, 32)
        pairs = np.stack([block[16:] & 15, block[16:] >> 4], -1).reshape(8, 32)
        swapped = numbers.reshape(4, 2, 32)[:, ::-1].reshape(8, 32)
        unshifted = np.array([*scales[:4], *(block[12:16] & 15 | block[4:8] >> 6)], float)
        low = np.array([*scales[:4], *(block[12:16] & 15)], float)

        def value(scales: np.ndarray, mins: np.ndarray, numbers: np.ndarray) -> np.ndarray:
            return (d * scales[:, None] * numbers - dmin * mins[:, None]).reshape(-1)  # noqa: B023

        compare(
            "x",
            answer("dequantize", block.tobytes()),
            right,
            tolerance=1e-5,
            suspects={
                "the minimum is missing: - dmin min[j].": value(scales, 0 * mins, numbers),
                "the minimum is added; it is subtracted.": value(scales, -mins, numbers),
                "the high bits of scale[4] ... scale[7] are missing.": value(low, mins, numbers),
                "the high bits of scale[4] ... scale[7] belong above the 4 low ones.": value(
                    unshifted, mins, numbers
                ),
                "low and high halves of the bytes are swapped.": value(scales, mins, swapped),
                "both halves of a byte are taken for adjacent numbers. The 32 low halves come "
                "first, then the 32 high ones.": value(scales, mins, pairs),
                "8 is subtracted from the numbers, as in Q4_0. Q4_K has minimums for that.": value(
                    scales, mins, numbers - 8
                ),
            },
        )


def _parts(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = block[4:16]
    scales, mins = s[:4] & 63, s[4:8] & 63
    high = (s[8:] & 15) | (s[:4] >> 6) << 4, s[8:] >> 4 | (s[4:8] >> 6) << 4
    q = block[16:].reshape(4, 32)
    nibbles = np.stack([q & 15, q >> 4], axis=1)
    parts = np.concatenate([scales, high[0]]), np.concatenate([mins, high[1]]), nibbles
    return tuple(part.astype(float) for part in parts)  # type: ignore[return-value]


PUZZLE = Puzzle(
    title="a block of Q4_K",
    wanted="""\
Return the 256 numbers of a block of 144 bytes, as a float array.
Eight groups of 32 numbers have a scale and a minimum each, of 6 bits; a number has 4 bits.""",
    formula="""\
bytes 0-1 d, 2-3 dmin (float16, little-endian); 4-15 s[0 ... 11]; 16-143 q[0 ... 127]

x[32 j + i] = d scale[j] n - dmin min[j]          j = 0 ... 7, i = 0 ... 31
n           = 4 bits of q[32 (j // 2) + i]: the low ones for even j, the high ones for odd j

j < 4:   scale[j] = low 6 bits of s[j]            min[j] = low 6 bits of s[j + 4]
j >= 4:  scale[j] = low 4 bits of s[j + 4], and above them the high 2 bits of s[j - 4]
         min[j]   = high 4 bits of s[j + 4], and above them the high 2 bits of s[j]""",
    code="""
import numpy as np


def dequantize(block):
    d, dmin = np.frombuffer(block[:4], "<f2").astype(np.float64)
    s = list(block[4:16])
    q = np.frombuffer(block[16:], np.uint8)
    x = np.zeros(256)
    # >>>
    for j in range(8):
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4
            least = s[j + 4] >> 4 | s[j] >> 6 << 4
        part = q[32 * (j // 2) : 32 * (j // 2) + 32]
        n = part >> 4 if j % 2 else part & 15
        x[32 * j : 32 * j + 32] = d * scale * n - dmin * least
    # ---
    # your code
    # <<<
    return x
""",
    hints=(
        "byte & 15 is its low half, byte >> 4 its high half, byte & 63 its low 6 bits.",
        "Groups 2 k and 2 k + 1 share the 32 bytes q[32 k : 32 k + 32]: the even group has their "
        "low halves, the odd one their high halves.",
        "For j >= 4: scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, and "
        "min = (s[j + 4] >> 4) | (s[j] >> 6) << 4.",
    ),
    why=(
        "A weight takes 4.5 bits, not 4. What is the half?",
        "Of 256 weights, 12 bytes of scales and mins and 4 bytes of d and dmin: 128 bits.",
    ),
    same="_kernels/quants/_superblocks.pxd",
    check=check,
)
