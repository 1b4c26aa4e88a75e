"""altup: streams that are predicted, corrected and scaled, against sums in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of

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


def _function(arrays: dict[str, Array], **sizes: int) -> Array:
    """Predict x; correct it by z, scaled to the length of a."""
    p = reference("altup.predict", {**arrays, "w": arrays["mix"]}, sizes)["y"]
    new = reference("altup.rescale", {**arrays, "x": arrays["a"]}, sizes)["y"]
    return reference("altup.correct", {**arrays, "p": p, "a": new}, sizes)["y"]


def _gradients(arrays: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    first = {**arrays, "w": arrays["mix"]}
    scaled = {**arrays, "x": arrays["a"]}
    p = reference("altup.predict", first, sizes)["y"]
    new = reference("altup.rescale", scaled, sizes)["y"]
    values = {**arrays, "p": p, "a": new, "dy": dy}
    corrected = reference("altup.correct_backward", values, sizes)
    mixed = reference("altup.predict_backward", {**first, "dy": corrected["dp"]}, sizes)
    rescaled = reference("altup.rescale_backward", {**scaled, "dy": corrected["da"]}, sizes)
    return {
        "dx": mixed["dx"],
        "dmix": mixed["dw"],
        "dz": rescaled["dz"],
        "da": rescaled["dx"],
        "dw": corrected["dw"],
        "df": corrected["df"],
    }


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    arrays = _inputs(rng, **sizes)
    dy, few = normal(rng, *arrays["x"].shape), normal(rng, *arrays["z"].shape)
    mixed = {**arrays, "w": arrays["mix"], "dy": dy}
    correct = {**arrays, "p": arrays["x"], "dy": dy}
    scaled: dict[str, Any] = {"z": arrays["z"], "x": arrays["a"], "dy": few}
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
    shapes=shapes_of("N A C", "1 2 1, 7 4 65, 5 3 130, 3 1 9, 0 4 8"),
    bench={"gemma3n_e2b": {"N": 256, "A": 4, "C": 2048}},
    tolerance=2e-6,
    reason="float32 sums of up to 130 products, and of 5 streams",
)
