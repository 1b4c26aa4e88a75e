"""cross_entropy against -log softmax in float64: integer labels with -100, dense label rows."""

from typing import Any

import numpy as np

from toynn.backends.reference import losses
from toynn.numerics.checks import IGNORED
from toynn.testing.cases._case import Array, Call, OpCase, call

DLOSS = 0.7


def _labels(rng: np.random.Generator, N: int, V: int) -> Array:
    """Labels (N,); every fifth row but the first is ignored."""
    labels = rng.integers(0, V, N).astype(np.int32)
    labels[4::5] = IGNORED
    return labels


def _inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    logits = 3 * rng.standard_normal((N, V)).astype(np.float32)
    return {"logits": logits, "labels": _labels(rng, N, V)}


def _dense(rng: np.random.Generator, N: int, V: int) -> Array:
    """Label rows that need not sum to 1; every fifth is all zero."""
    labels: Array = rng.random((N, V), np.float32) / V
    labels[4::5] = 0
    return labels


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return losses.forward(**inputs)["loss"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    rows = losses.forward(**inputs)["rows"]
    return losses.backward(dloss=dy, **inputs, rows=rows)


def _pair(form: str, logits: Array, labels: Array) -> list[Call]:
    forward, backward = (getattr(losses, name + form) for name in ("forward", "backward"))
    given = {"logits": logits, "labels": labels}
    exact = given | {"logits": logits.astype(np.float64)}
    if form:
        exact["labels"] = labels.astype(np.float64)
    written, dloss = forward(**exact), np.array([DLOSS])
    saved = {name: written[name] for name in ("lse", "rows")}
    exact["dloss"] = dloss.astype(np.float32).astype(np.float64)
    return [
        call("forward" + form, written, given),
        call(
            "backward" + form,
            backward(**exact, rows=written["rows"]),
            {"dloss": dloss, **given, **saved},
        ),
    ]


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    inputs = _inputs(rng, N, V)
    dense = _dense(rng, N, V)
    return [
        *_pair("", inputs["logits"], inputs["labels"]),
        *_pair("_dense", inputs["logits"], dense),
    ]


CASE = OpCase(
    op="cross_entropy",
    shapes=(
        {"N": 1, "V": 1},
        {"N": 37, "V": 130},
        {"N": 3, "V": 1025},
        {"N": 257, "V": 17},
        {"N": 513, "V": 3},
        {"N": 6, "V": 5003},
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257}, "bytes": {"N": 2048, "V": 256}},
    calls=_calls,
    tolerance=2e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums, lse rounded to float32",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
