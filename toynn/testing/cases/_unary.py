"""Cases of ops that make each element of y from one of x, which their backward reads again."""

from collections.abc import Callable
from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

SHAPES = ({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097})


def unary(
    op: str,
    forward: Callable[..., dict[str, Array]],
    backward: Callable[..., dict[str, Array]],
    *,
    bench: dict[str, dict[str, int]],
    tolerance: float,
    reason: str,
    shapes: tuple[dict[str, int], ...] = SHAPES,
    spread: int = 16,
) -> OpCase:
    """Return the case of an op with such references; sizes other than n are options of both.

    x lies around 0 and, every fourth one, ``spread`` times as far out: where y is flat or straight.
    """

    def inputs(rng: np.random.Generator, n: int, **_: int) -> dict[str, Array]:
        x = rng.standard_normal(n).astype(np.float32)
        x[::4] *= spread
        return {"x": x}

    def function(given: dict[str, Array], n: int, **options: int) -> Array:
        return forward(**given, **options)["y"]

    def gradients(given: dict[str, Array], dy: Array, n: int, **options: int) -> dict[str, Array]:
        return backward(dy, **given, **options)

    def calls(rng: np.random.Generator, n: int, **options: Any) -> list[Call]:
        given = inputs(rng, n)
        exact = {"x": given["x"].astype(np.float64)}
        dy = rng.standard_normal(n).astype(np.float32)
        dx = gradients(exact, dy.astype(np.float64), n, **options)
        y = {"y": function(exact, n, **options)}
        return [
            call("forward", y, given, **options),
            call("backward", dx, {"dy": dy, **given}, **options),
        ]

    return OpCase(op, shapes, bench, calls, tolerance, reason, 0.0, inputs, function, gradients)
