"""shortconv against sums over shifted rows, in float64."""

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal, shapes_of
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


def _cached(rng: np.random.Generator, arrays: dict[str, Array], sizes: Sizes) -> list[Call]:
    if "past" not in sizes:
        return []
    past = sizes["past"] // np.arange(1, sizes["B"] + 1)
    kept = {"ring": normal(rng, sizes["B"], RING, sizes["C"]), "past": past}
    return [derived("shortconv.cached", arrays | kept, {**sizes, **_options(sizes)})]


CASE = differentiable(
    "shortconv",
    _inputs,
    options=_options,
    more=_cached,
    without=lambda sizes: () if sizes.get("biased") else ("db",),
    shapes=shapes_of(
        "B T C L",
        "1 1 1 1 past=0, 2 9 5 3 past=1, 1 70 65 4 past=79, 2 1 33 3 past=500, 1 2 8 7 past=3",
        "2 9 65 4 P=1 past=79 biased=1, 0 4 8 3, 2 9 5 4 P=1, 2 0 8 3, 2 200 6 3 segments=1",
        "3 7 4 5 segments=4 biased=1, 3 7 4 5 P=1 segments=4",
    ),
    bench={
        "lfm2_350m": {"B": 1, "T": 256, "C": 1024, "L": 3},
        "qwen35_0.8b": {"B": 1, "T": 256, "C": 6144, "L": 4, "P": 1},
    },
    tolerance=1e-6,
    reason="float32 sums of up to 400 terms, one after the other; products of four factors",
)
