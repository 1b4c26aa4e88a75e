"""altup: streams that are predicted, corrected and scaled, against sums in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference

OTHERS = {"p": "only the error of stream 0 has a weight"}


def _inputs(rng: np.random.Generator, N: int, A: int, C: int) -> dict[str, Array]:
    z = normal(rng, N, C)
    z[::3] *= 1e-4  # shorter than the floor
    return {
        "x": normal(rng, N, A, C),
        "mix": normal(rng, N, A * A, scale=0.5),
        "z": z,
        "a": normal(rng, N, C),
        "w": normal(rng, N, A, scale=0.5),
        "f": normal(rng, N, C),
    }


def _function(given: dict[str, Array], **sizes: int) -> Array:
    """Predict x; correct it by z, scaled to the length of a."""
    p = reference("altup.predict", {**given, "w": given["mix"]}, sizes)["y"]
    new = reference("altup.rescale", {**given, "x": given["a"]}, sizes)["y"]
    return reference("altup.correct", {**given, "p": p, "a": new}, sizes)["y"]


def _gradients(given: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    first = {**given, "w": given["mix"]}
    scaled = {**given, "x": given["a"]}
    p = reference("altup.predict", first, sizes)["y"]
    new = reference("altup.rescale", scaled, sizes)["y"]
    known = {**given, "p": p, "a": new, "dy": dy}
    found = reference("altup.correct_backward", known, sizes)
    mixed = reference("altup.predict_backward", {**first, "dy": found["dp"]}, sizes)
    own = reference("altup.rescale_backward", {**scaled, "dy": found["da"]}, sizes)
    return {
        "dx": mixed["dx"],
        "dmix": mixed["dw"],
        "dz": own["dz"],
        "da": own["dx"],
        "dw": found["dw"],
        "df": found["df"],
    }


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    given = _inputs(rng, **sizes)
    dy, few = normal(rng, *given["x"].shape), normal(rng, *given["z"].shape)
    mixed = {**given, "w": given["mix"], "dy": dy}
    correct = {**given, "p": given["x"], "dy": dy}
    scaled: dict[str, Any] = {"z": given["z"], "x": given["a"], "dy": few}
    alone = {name: array for name, array in correct.items() if name != "f"}
    return [
        derived("altup.predict", mixed, sizes),
        derived("altup.predict_backward", mixed, sizes),
        derived("altup.correct", correct, sizes),
        derived("altup.correct_backward", correct, sizes, loses_nan=OTHERS),
        derived("altup.correct", alone, sizes),
        derived("altup.correct_backward", alone, sizes, loses_nan=OTHERS, without=("df",)),
        derived("altup.rescale", scaled, sizes),
        derived("altup.rescale_backward", scaled, sizes),
    ]


CASE = OpCase(
    op="altup",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"N": 1, "A": 2, "C": 1},
        {"N": 7, "A": 4, "C": 65},
        {"N": 5, "A": 3, "C": 130},
        {"N": 3, "A": 1, "C": 9},
        {"N": 0, "A": 4, "C": 8},
    ),
    bench={"gemma3n_e2b": {"N": 256, "A": 4, "C": 2048}},
    tolerance=2e-6,
    reason="float32 sums of up to 130 products, and of 5 streams",
)
