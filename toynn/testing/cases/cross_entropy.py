"""cross_entropy against -log softmax in float64: integer labels with -100, dense label rows."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

IGNORED = -100
DLOSS = 0.7
FEW_FLOPS = 12  # per logit: maximum, subtraction, exponential, sum


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


def _one_hot(labels: Array, V: int) -> Array:
    rows: Array = (labels[:, None] == np.arange(V)).astype(np.float64)
    return rows


def _log_sum_exp(logits: Array) -> Array:
    top = logits.max(axis=1, keepdims=True)
    lse: Array = (top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))[:, 0]
    return lse


def _forward(logits: Array, dense: Array) -> dict[str, Array]:
    """Everything that forward writes, from labels as dense rows."""
    lse = _log_sum_exp(logits)
    rows = dense.any(axis=1).sum()
    loss = (dense * (lse[:, None] - logits)).sum() / rows
    return {"loss": np.array([loss]), "lse": lse, "rows": np.array([rows], np.float64)}


def _backward(logits: Array, dense: Array, dloss: Any) -> dict[str, Array]:
    softmax = np.exp(logits - _log_sum_exp(logits)[:, None])
    rows = dense.any(axis=1).sum()
    return {"dlogits": dloss / rows * (dense.sum(axis=1, keepdims=True) * softmax - dense)}


def _rows(labels: Array, V: int) -> Array:
    """Labels of either form as dense rows."""
    return labels if labels.ndim == 2 else _one_hot(labels, V)


def _function(inputs: dict[str, Array], V: int, **_: Any) -> Array:
    return _forward(inputs["logits"], _rows(inputs["labels"], V))["loss"]


def _gradients(inputs: dict[str, Array], dy: Array, V: int, **_: Any) -> dict[str, Array]:
    return _backward(inputs["logits"], _rows(inputs["labels"], V), dy)


def _pair(form: str, logits: Array, labels: Array, dense: Array) -> list[Call]:
    exact, dense = logits.astype(np.float64), dense.astype(np.float64)
    saved = _forward(exact, dense)
    given = {"logits": logits, "labels": labels}
    return [
        call("forward" + form, saved, given, flops=FEW_FLOPS * logits.size),
        call(
            "backward" + form,
            _backward(exact, dense, np.float32(DLOSS).astype(np.float64)),
            {"dloss": np.array([DLOSS]), **given, "lse": saved["lse"], "rows": saved["rows"]},
            in_place={"dlogits": "logits"},
            flops=FEW_FLOPS * logits.size,
        ),
    ]


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    inputs = _inputs(rng, N, V)
    dense = _dense(rng, N, V)
    return [
        *_pair("", inputs["logits"], inputs["labels"], _one_hot(inputs["labels"], V)),
        *_pair("_dense", inputs["logits"], dense, dense),
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
