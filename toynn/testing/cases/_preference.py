"""What the cases of dpo, orpo and kto share: a loss of sums of pairs, and its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toynn.backends.reference import preferences
from toynn.testing.cases._case import Array, Call, OpCase, call

Inputs = Callable[..., dict[str, Array]]


def preference_case(
    op: str, inputs: Inputs, options: dict[str, Any], unread: Mapping[str, str]
) -> OpCase:
    """Return the case of a loss over S sequences, of which the first n count.

    ``unread`` says which inputs have values that nothing depends on, and where.
    """
    loss, gradient = getattr(preferences, op), getattr(preferences, f"{op}_backward")

    def function(given: dict[str, Array], **_: Any) -> Array:
        value: Array = loss(**given, **options)["loss"]
        return value

    def gradients(given: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
        found: dict[str, Array] = gradient(dy, **given, **options)
        return found

    def calls(rng: np.random.Generator, S: int, n: int) -> list[Call]:
        given = inputs(rng, S, n)
        exact = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in given.items()}
        dloss = np.array([0.75])
        forward, backward = loss(**exact, **options), gradient(dloss, **exact, **options)
        return [
            call("forward", forward, given, loses_nan=unread, **options),
            call("backward", backward, {"dloss": dloss, **given}, loses_nan=unread, **options),
        ]

    return OpCase(
        op=op,
        shapes=({"S": 20, "n": 20}, {"S": 9, "n": 4}, {"S": 2, "n": 2}),
        bench={"pairs_8": {"S": 16, "n": 16}},
        calls=calls,
        tolerance=5e-7,
        reason="all in double; options and results are float32",
        inputs=inputs,
        function=function,
        gradients=gradients,
    )
