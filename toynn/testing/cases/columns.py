"""columns against slices; its gradient against zeros in which a slice is set."""

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal


def _inputs(rng: np.random.Generator, N: int, X: int, **_: int) -> dict[str, Array]:
    return {"x": normal(rng, N, X)}


def _place(rng: np.random.Generator, given: dict[str, Array], sizes: Sizes) -> list[Call]:
    read = {"y": given["x"], "x": normal(rng, sizes["N"], sizes["C"])}
    lost = {"y": "some of its columns are overwritten"}
    return [derived("columns.place", read, sizes, loses_nan=lost)]


CASE = differentiable(
    "columns",
    _inputs,
    shapes=(
        {"N": 1, "X": 1, "C": 1, "K": 0},
        {"N": 7, "X": 65, "C": 33, "K": 31},
        {"N": 5, "X": 40, "C": 8, "K": 32},
        {"N": 5, "X": 4, "C": 4, "K": 0},
        {"N": 0, "X": 8, "C": 3, "K": 2},
    ),
    more=_place,
    loses_nan=lambda entry, sizes: {"x": "other columns are not read"},
    bench={"granite4_h_1b": {"N": 256, "X": 6448, "C": 3328, "K": 3072}},
    tolerance=1e-7,
    reason="numbers are copied; one rounding where they are added",
)
