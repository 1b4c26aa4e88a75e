"""random against plain Python: a loop for each generator, on integers that cannot overflow."""

import math

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call, shapes_of

BLOCK = 4096
MASK = 2**64 - 1
SEED, STREAM, STD = 0, 3, 0.02


def lcg_uniform(n: int, state: int, scale: float) -> tuple[Array, int]:
    """Return ``n`` values of the linear congruential generator, and its state after them."""
    values = np.empty(n)
    for i in range(n):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        values[i] = ((state >> 8) / 8388608.0 - 1.0) * scale
    return values, state


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _xorshift(x: int) -> int:
    x ^= (x << 13) & MASK
    x ^= x >> 7
    return x ^ ((x << 17) & MASK)


def normal(n: int, seed: int, stream: int, std: float) -> Array:
    """Return ``n`` normal values by Box-Muller, in blocks that are seeded one by one."""
    values = np.empty(n + n % 2)
    x = 0
    for i in range(0, n, 2):
        if i % BLOCK == 0:
            x = _splitmix(_splitmix(_splitmix(seed & MASK) ^ stream) ^ (i // BLOCK))
        x = _xorshift(x)
        r = std * math.sqrt(-2 * math.log(((x >> 11) + 1) / 2**53))
        x = _xorshift(x)
        angle = 2 * math.pi * (((x >> 11) + 1) / 2**53)
        values[i : i + 2] = r * math.cos(angle), r * math.sin(angle)
    return values[:n]


def _calls(_: np.random.Generator, n: int) -> list[Call]:
    uniform, _state = lcg_uniform(n, SEED, STD)
    return [
        call("lcg_uniform", {"out": uniform}, {}, state=SEED, scale=STD),
        call(
            "normal",
            {"out": normal(n, SEED, STREAM, STD)},
            {},
            seed=SEED,
            stream=STREAM,
            std=STD,
        ),
    ]


CASE = OpCase(
    op="random",
    shapes=shapes_of("n", "1, 130, 0, 4095, 4097, 12288"),
    bench={"gpt2_tiny": {"n": 143_424}},
    calls=_calls,
    tolerance=1e-8,
    reason="float64 within, one rounding of values below 0.1 to float32",
)
