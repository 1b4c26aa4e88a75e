"""chunked_cross_entropy against -log softmax in float64; the rows here are one chunk of several."""

from typing import Any

import numpy as np

from toynn.numerics.checks import IGNORED
from toynn.testing.cases._case import Array, Call, OpCase, derived, reference, shapes_of
from toynn.testing.cases.cross_entropy import DLOSS, inputs

OP = "chunked_cross_entropy"
OTHER_ROWS = 3  # labelled rows in other chunks


def rows_of(labels: Array) -> Array:
    """Return how many rows have a label, those of other chunks included."""
    return np.array([OTHER_ROWS + float((labels != IGNORED).sum())])


def _function(arrays: dict[str, Array], **_: Any) -> Array:
    each = reference(f"{OP}.forward", arrays, {})
    return reference(f"{OP}.mean", {**each, "rows": rows_of(arrays["labels"])}, {})["loss"]


def _gradients(arrays: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    read = {**arrays, "dloss": dy, "rows": rows_of(arrays["labels"])}
    return {"dlogits": reference(f"{OP}.backward", read, {})["dlogits"]}


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    arrays = inputs(rng, N, V)
    forward = derived(f"{OP}.forward", arrays)
    losses = forward.expected["losses"]
    arrays |= {"losses": losses, "dlosses": losses, "rows": rows_of(arrays["labels"])}
    arrays["dloss"] = np.array([DLOSS])
    later = (derived(f"{OP}.{entry}", arrays) for entry in ("backward", "each", "mean"))
    return [derived(f"{OP}.count", arrays, V=V), forward, *later]


CASE = OpCase(
    op="chunked_cross_entropy",
    inputs=inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N V", "1 1, 37 130, 3 1025, 257 17, 6 5003"),
    bench={"gpt2_124m": {"N": 256, "V": 50257}},
    tolerance=2e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums; a loss is float32",
)
