"""shortconv against sums over shifted rows, in float64."""

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal
from toynn.testing.cases.attention import segment_starts

RING = 80


def _inputs(
    rng: np.random.Generator,
    B: int,
    T: int,
    C: int,
    L: int,
    P: int = 3,
    segments: int = 0,
    biased: int = 0,
    **_: int,
) -> dict[str, Array]:
    arrays = {"x": normal(rng, B * T, P * C), "w": normal(rng, C, L)}
    arrays |= {"b": normal(rng, C)} if biased else {}
    return arrays | {"first": segment_starts(B, T, segments)} if segments else arrays


def _options(sizes: Sizes) -> dict[str, int]:
    return {"P": sizes.get("P", 3)}


def _cached(rng: np.random.Generator, given: dict[str, Array], sizes: Sizes) -> list[Call]:
    if "past" not in sizes:
        return []
    past = sizes["past"] // np.arange(1, sizes["B"] + 1)
    kept = {"ring": normal(rng, sizes["B"], RING, sizes["C"]), "past": past}
    return [derived("shortconv.cached", given | kept, {**sizes, **_options(sizes)})]


CASE = differentiable(
    "shortconv",
    _inputs,
    options=_options,
    more=_cached,
    without=lambda sizes: () if sizes.get("biased") else ("db",),
    shapes=(
        {"B": 1, "T": 1, "C": 1, "L": 1, "past": 0},
        {"B": 2, "T": 9, "C": 5, "L": 3, "past": 1},
        {"B": 1, "T": 70, "C": 65, "L": 4, "past": 79},
        {"B": 2, "T": 1, "C": 33, "L": 3, "past": 500},
        {"B": 1, "T": 2, "C": 8, "L": 7, "past": 3},
        {"B": 2, "T": 9, "C": 65, "L": 4, "P": 1, "past": 79, "biased": 1},
        {"B": 0, "T": 4, "C": 8, "L": 3},
        {"B": 2, "T": 9, "C": 5, "L": 4, "P": 1},
        {"B": 2, "T": 0, "C": 8, "L": 3},
        {"B": 2, "T": 200, "C": 6, "L": 3, "segments": 1},
        {"B": 3, "T": 7, "C": 4, "L": 5, "segments": 4, "biased": 1},
        {"B": 3, "T": 7, "C": 4, "L": 5, "P": 1, "segments": 4},
    ),
    bench={
        "lfm2_350m": {"B": 1, "T": 256, "C": 1024, "L": 3},
        "qwen35_0.8b": {"B": 1, "T": 256, "C": 6144, "L": 4, "P": 1},
    },
    tolerance=1e-6,
    reason="float32 sums of up to 400 terms, one after the other; products of four factors",
)
