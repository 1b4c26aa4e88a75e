"""kto against its formula in float64."""

from typing import Any

import numpy as np

from toynn.backends.reference import preferences
from toynn.testing.cases._case import Array, Call, OpCase, call

OPTIONS: dict[str, Any] = {"beta": 0.25, "good": 1.0, "bad": 1.5}
UNREAD = {"sums": "of prompts, and behind count", "reference": "behind count"}


def _inputs(rng: np.random.Generator, S: int, n: int) -> dict[str, Array]:
    return {
        "sums": rng.uniform(0.1, 30, (S, 2)).astype(np.float32),
        "reference": -rng.uniform(0.1, 30, S).astype(np.float32),
        "kl": np.array([1.5], np.float32),
        "wanted": rng.integers(0, 2, S).astype(np.int32),
        "count": np.array([n], np.int32),
    }


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return preferences.kto(**inputs, **OPTIONS)["loss"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    return preferences.kto_backward(dy, **inputs, **OPTIONS)


def _calls(rng: np.random.Generator, S: int, n: int) -> list[Call]:
    given = _inputs(rng, S, n)
    exact = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in given.items()}
    dloss = np.array([0.75])
    return [
        call(
            "forward",
            preferences.kto(**exact, **OPTIONS),
            given,
            loses_nan=UNREAD,
            **OPTIONS,
        ),
        call(
            "backward",
            preferences.kto_backward(dloss, **exact, **OPTIONS),
            {"dloss": dloss, **given},
            loses_nan=UNREAD,
            **OPTIONS,
        ),
    ]


CASE = OpCase(
    op="kto",
    shapes=({"S": 20, "n": 20}, {"S": 9, "n": 4}, {"S": 2, "n": 2}),
    bench={"pairs_8": {"S": 16, "n": 16}},
    calls=_calls,
    tolerance=5e-7,
    reason="all in double; options and results are float32",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
