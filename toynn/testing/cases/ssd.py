"""ssd, which computes in chunks, against the recurrence itself, row by row, in float64."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal, shapes_of
from toynn.testing.cases.attention import segment_starts
from toynn.testing.cases.delta import cached


def _inputs(
    rng: np.random.Generator, B: int, T: int, V: int, E: int, G: int, D: int, segments: int = 0,
    **_: int,
) -> dict[str, Array]:  # fmt: skip
    N = B * T
    arrays = {
        "x": normal(rng, N, V * E + 2 * G * D),
        "dt": normal(rng, N, V, scale=2),
        "a": -rng.uniform(0.001, 2, (V, 1)).astype(np.float32),
        "bias": normal(rng, V),
        "skip": normal(rng, V, 1),
    }
    return arrays | {"first": segment_starts(B, T, segments)} if segments else arrays


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    return {"a": "a sequence begins with a state of 0"} if sizes["T"] == 1 else {}


CASE = differentiable(
    "ssd",
    _inputs,
    loses_nan=_loses_nan,
    more=partial(cached, "ssd.cached"),
    shapes=shapes_of(
        "B T V E G D",
        "1 5 4 5 2 6 past=3, 1 1 1 1 1 1 past=0, 2 65 3 7 1 17 past=1 count=65",
        "1 200 2 33 1 40 past=7 count=130, 2 4 2 3 2 2 past=6, 2 0 2 4 1 4",
        "2 20 2 5 2 6 segments=4, 2 150 2 4 1 3 segments=2",
    ),
    bench={
        "granite4_h_1b": {"B": 1, "T": 256, "V": 48, "E": 64, "G": 1, "D": 128},
    },
    tolerance=2e-6,
    reason="sums of up to 64 products in float32, of factors that are products of up to 64",
)
