"""chunked_cross_entropy against -log softmax in float64: these rows as one chunk of several."""

from typing import Any

import numpy as np

from toynn.backends.reference import losses
from toynn.numerics.checks import IGNORED
from toynn.testing.cases._case import Array, Call, OpCase, call
from toynn.testing.cases.cross_entropy import DLOSS

OTHER_ROWS = 3  # that count, in other chunks


def _inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    """Logits, and labels of which every fifth but the first is ignored."""
    labels = rng.integers(0, V, N).astype(np.int32)
    labels[4::5] = IGNORED
    return {"logits": 3 * rng.standard_normal((N, V)).astype(np.float32), "labels": labels}


def _rows(labels: Array) -> float:
    return OTHER_ROWS + float((labels != IGNORED).sum())


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    each = losses.chunk(inputs["logits"], inputs["labels"])["losses"]
    return losses.mean(each, np.array([_rows(inputs["labels"])]))["loss"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    logits, labels = inputs["logits"], inputs["labels"]
    written = losses.chunk_backward(dy, logits, labels, np.array([_rows(labels)]))
    return {"dlogits": written["dlogits"]}


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    given = _inputs(rng, N, V)
    exact, labels = given["logits"].astype(np.float64), given["labels"]
    each = losses.chunk(exact, labels)["losses"]
    rows, dloss = np.array([_rows(labels)]), np.array([DLOSS])
    written = losses.chunk_backward(dloss.astype(np.float32).astype(float), exact, labels, rows)
    return [
        call("count", losses.count(labels), {"labels": labels}, free=("labels",), V=V),
        call("forward", {"losses": each}, given),
        call(
            "backward",
            written,
            {"dloss": dloss, **given, "rows": rows},
        ),
        call(
            "each",
            losses.each(each.astype(np.float32).astype(float), exact, labels),
            {"dlosses": each, **given},
        ),
        call(
            "mean",
            losses.mean(each.astype(np.float32), rows),
            {"losses": each, "rows": rows},
            free=("losses",),
        ),
    ]


CASE = OpCase(
    op="chunked_cross_entropy",
    shapes=(
        {"N": 1, "V": 1},
        {"N": 37, "V": 130},
        {"N": 3, "V": 1025},
        {"N": 257, "V": 17},
        {"N": 6, "V": 5003},
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257}},
    calls=_calls,
    tolerance=2e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums; a loss is float32",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
