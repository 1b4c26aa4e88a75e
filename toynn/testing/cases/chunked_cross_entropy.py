"""chunked_cross_entropy against -log softmax in float64; the rows here are one chunk of several."""

from typing import Any

import numpy as np

from toynn.numerics.checks import IGNORED
from toynn.testing.cases._case import Array, Call, OpCase, derived, reference
from toynn.testing.cases.cross_entropy import DLOSS, inputs

OP = "chunked_cross_entropy"
OTHER_ROWS = 3  # valid rows in other chunks


def _rows(labels: Array) -> Array:
    return np.array([OTHER_ROWS + float((labels != IGNORED).sum())])


def _function(given: dict[str, Array], **_: Any) -> Array:
    each = reference(f"{OP}.forward", given, {})
    return reference(f"{OP}.mean", {**each, "rows": _rows(given["labels"])}, {})["loss"]


def _gradients(given: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    read = {**given, "dloss": dy, "rows": _rows(given["labels"])}
    return {"dlogits": reference(f"{OP}.backward", read, {})["dlogits"]}


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    given = inputs(rng, N, V)
    forward = derived(f"{OP}.forward", given)
    losses = forward.expected["losses"]
    given |= {"losses": losses, "dlosses": losses, "rows": _rows(given["labels"])}
    given["dloss"] = np.array([DLOSS])
    later = (derived(f"{OP}.{entry}", given) for entry in ("backward", "each", "mean"))
    return [derived(f"{OP}.count", given, V=V), forward, *later]


CASE = OpCase(
    op="chunked_cross_entropy",
    inputs=inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"N": 1, "V": 1},
        {"N": 37, "V": 130},
        {"N": 3, "V": 1025},
        {"N": 257, "V": 17},
        {"N": 6, "V": 5003},
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257}},
    tolerance=2e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums; a loss is float32",
)
