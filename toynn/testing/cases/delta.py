"""delta against the rule itself, row by row, in float64."""

from functools import partial

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal, shapes_of
from toynn.testing.cases.attention import segment_starts


def _inputs(
    rng: np.random.Generator, B: int, T: int, K: int, V: int, D: int, E: int,
    segments: int = 0, **_: int,
) -> dict[str, Array]:  # fmt: skip
    N = B * T
    arrays = {
        "x": normal(rng, N, 2 * K * D + V * E),
        "g": -rng.exponential(0.3, (N, V)).astype(np.float32),
        "c": normal(rng, N, V),
    }
    return arrays | {"first": segment_starts(B, T, segments)} if segments else arrays


def cached(
    kernel: str, rng: np.random.Generator, arrays: dict[str, Array], sizes: Sizes
) -> list[Call]:
    """Return the call that begins with cached states, if a shape has a past."""
    if "past" not in sizes:
        return []
    B, T = sizes["B"], sizes["T"]
    kept = {
        "past": sizes["past"] // np.arange(1, B + 1),
        "count": np.maximum(sizes.get("count", T) - 5 * np.arange(B), 0),
        "state": normal(rng, B, sizes["V"], sizes["D"], sizes["E"]),
    }
    return [derived(kernel, arrays | kept, sizes)]


CASE = differentiable(
    "delta",
    _inputs,
    options=lambda sizes: {"S": -(-sizes["T"] // sizes["L"])},
    loses_nan=lambda entry, sizes: {"states": "a sequence begins with a state of 0"},
    more=partial(cached, "delta.cached"),
    shapes=shapes_of(
        "B T K V D E L",
        "1 5 2 4 6 5 2 past=3, 1 1 1 1 1 1 1 past=0, 2 9 1 3 17 33 4 past=1",
        "1 3 2 2 256 64 32 past=7 count=2, 2 4 1 1 3 2 3 past=6, 2 0 1 2 4 4 4",
        "2 20 2 2 5 6 8 segments=4, 2 5 2 6 4 5 2 past=3 grouped=1",
    ),
    bench={
        "qwen35_0.8b": {"B": 1, "T": 256, "K": 16, "V": 16, "D": 128, "E": 128, "L": 32},
    },
    tolerance=2e-6,
    reason="sums of up to 256 products in float32, one after the other, twice a row",
)
