"""chunked_cross_entropy against -log softmax in float64: these rows as one chunk of several."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call
from toynn.testing.cases.cross_entropy import DLOSS, FEW_FLOPS, IGNORED

OTHER_ROWS = 3  # that count, in other chunks


def _inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    """Logits, and labels of which every fifth but the first is ignored."""
    labels = rng.integers(0, V, N).astype(np.int32)
    labels[4::5] = IGNORED
    return {"logits": 3 * rng.standard_normal((N, V)).astype(np.float32), "labels": labels}


def _one_hot(labels: Array, V: int) -> Array:
    rows: Array = (labels[:, None] == np.arange(V)).astype(np.float64)
    return rows


def losses(logits: Array, labels: Array) -> Array:
    """Loss of each row; 0 where it does not count."""
    top = logits.max(axis=1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    each: Array = lse - logits[np.arange(len(labels)), np.maximum(labels, 0)]
    return np.where(labels == IGNORED, 0, each)


def _dlogits(logits: Array, labels: Array, dloss: Any, rows: float) -> Array:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = e / e.sum(axis=1, keepdims=True)
    counts = (labels != IGNORED)[:, None]
    gradient: Array = dloss / rows * (softmax - _one_hot(labels, logits.shape[1])) * counts
    return gradient


def _rows(labels: Array) -> float:
    return OTHER_ROWS + float((labels != IGNORED).sum())


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    total = losses(inputs["logits"], inputs["labels"]).sum()
    return np.array([total / _rows(inputs["labels"])])


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    labels = inputs["labels"]
    return {"dlogits": _dlogits(inputs["logits"], labels, dy, _rows(labels))}


def _calls(rng: np.random.Generator, N: int, V: int) -> list[Call]:
    given = _inputs(rng, N, V)
    exact, labels = given["logits"].astype(np.float64), given["labels"]
    each, counting = losses(exact, labels), np.array([(labels != IGNORED).sum()], np.float64)
    rows, dloss = np.array([_rows(labels)]), np.array([DLOSS])
    dlogits = _dlogits(exact, labels, np.float32(DLOSS).astype(np.float64), rows[0])
    return [
        call("count", {"rows": counting}, {"labels": labels}, free=("labels",), classes=V),
        call("forward", {"losses": each}, given, flops=FEW_FLOPS * exact.size),
        call(
            "backward",
            {"dlogits": dlogits, "losses": each},
            {"dloss": dloss, **given, "rows": rows},
            in_place={"dlogits": "logits"},
            flops=FEW_FLOPS * exact.size,
        ),
        call(
            "mean",
            {"loss": np.array([each.astype(np.float32).sum() / rows[0]])},
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
