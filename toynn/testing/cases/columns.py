"""columns against slices; its gradient against zeros in which a slice is set."""

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal, shapes_of


def _place(rng: np.random.Generator, arrays: dict[str, Array], sizes: Sizes) -> list[Call]:
    read = {"y": arrays["x"], "x": normal(rng, sizes["N"], sizes["C"])}
    lost = {"y": "some of its columns are overwritten"}
    return [derived("columns.place", read, sizes, loses_nan=lost)]


CASE = differentiable(
    "columns",
    shapes=shapes_of("N X C K", "1 1 1 0, 7 65 33 31, 5 40 8 32, 5 4 4 0, 0 8 3 2"),
    more=_place,
    loses_nan=lambda entry, sizes: {"x": "other columns are not read"},
    bench={"granite4_h_1b": {"N": 256, "X": 6448, "C": 3328, "K": 3072}},
    tolerance=1e-7,
    reason="numbers are copied; one rounding where they are added",
)
