"""routing against a stable argsort of the scores."""

from typing import Any

import numpy as np

from toynn.backends.reference import experts
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, E: int, **_: Any) -> dict[str, Array]:
    logits = 2 * rng.standard_normal((N, E))
    p = np.exp(logits)
    return {"p": (p / p.sum(axis=1, keepdims=True)).astype(np.float32)}


def _options(K: int, normalized: int = 0, tenths: int = 10, **_: Any) -> dict[str, Any]:
    return {"K": K, "normalized": normalized, "scale": float(np.float32(tenths / 10))}


def _function(inputs: dict[str, Array], **sizes: Any) -> Array:
    return experts.routing(inputs["p"], **_options(**sizes))["weights"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: Any) -> dict[str, Array]:
    options = _options(**sizes)
    chosen = experts.routing(inputs["p"], **options)["experts"]
    del options["K"]
    return experts.routing_backward(dy, inputs["p"], chosen, **options)


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    options = _options(**sizes)
    exact = inputs["p"].astype(np.float64)
    forward = experts.routing(exact, **options)
    dy = rng.standard_normal(forward["weights"].shape).astype(np.float32)
    gradients = _gradients({"p": exact}, dy.astype(np.float64), **sizes)
    named = {"normalized": bool(options["normalized"]), "scale": options["scale"]}
    saved = {"weights": forward["weights"].astype(np.float32), "experts": forward["experts"]}
    return [
        call("forward", forward, inputs, **named),
        call(
            "backward",
            gradients,
            {"dweights": dy, **inputs, **saved},
            loses_nan={}
            if options["normalized"]
            else {"p": "without the sum nothing depends on it", "weights": "nor on these"},
            **named,
        ),
    ]


CASE = OpCase(
    op="routing",
    shapes=(
        {"N": 37, "E": 11, "K": 3, "normalized": 1, "tenths": 25},
        {"N": 65, "E": 32, "K": 4},
        {"N": 3, "E": 8, "K": 8, "normalized": 1},  # all
        {"N": 9, "E": 1, "K": 1},
        {"N": 0, "E": 4, "K": 2},
        {"N": 20, "E": 128, "K": 1, "tenths": 5},
    ),
    bench={"qwen3_30b_a3b": {"N": 256, "E": 128, "K": 8, "normalized": 1}},
    calls=_calls,
    tolerance=1e-6,
    reason="a sum of up to eight scores, a quotient, a product; a gradient is a difference",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
