"""delta against the rule itself, row by row, in float64."""

from collections.abc import Mapping

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal
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


def _options(sizes: Sizes) -> dict[str, int]:
    return {"S": -(-sizes["T"] // sizes["L"])}


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    return {"states": "a sequence begins with a state of 0"}


def _cached(rng: np.random.Generator, given: dict[str, Array], sizes: Sizes) -> list[Call]:
    if "past" not in sizes:
        return []
    B, T = sizes["B"], sizes["T"]
    kept = {
        "past": sizes["past"] // np.arange(1, B + 1),
        "count": np.maximum(sizes.get("count", T) - 5 * np.arange(B), 0),
        "state": normal(rng, B, sizes["V"], sizes["D"], sizes["E"]),
    }
    return [derived("delta.cached", given | kept, sizes)]


CASE = differentiable(
    "delta",
    _inputs,
    options=_options,
    loses_nan=_loses_nan,
    more=_cached,
    shapes=(
        {"B": 1, "T": 5, "K": 2, "V": 4, "D": 6, "E": 5, "L": 2, "past": 3},
        {"B": 1, "T": 1, "K": 1, "V": 1, "D": 1, "E": 1, "L": 1, "past": 0},
        {"B": 2, "T": 9, "K": 1, "V": 3, "D": 17, "E": 33, "L": 4, "past": 1},
        {"B": 1, "T": 3, "K": 2, "V": 2, "D": 256, "E": 64, "L": 32, "past": 7, "count": 2},
        {"B": 2, "T": 4, "K": 1, "V": 1, "D": 3, "E": 2, "L": 3, "past": 6},
        {"B": 2, "T": 0, "K": 1, "V": 2, "D": 4, "E": 4, "L": 4},
        {"B": 2, "T": 20, "K": 2, "V": 2, "D": 5, "E": 6, "L": 8, "segments": 4},
        {"B": 2, "T": 5, "K": 2, "V": 6, "D": 4, "E": 5, "L": 2, "past": 3, "grouped": 1},
    ),
    bench={
        "qwen35_0.8b": {"B": 1, "T": 256, "K": 16, "V": 16, "D": 128, "E": 128, "L": 32},
    },
    tolerance=2e-6,
    reason="sums of up to 256 products in float32, one after the other, twice a row",
)
