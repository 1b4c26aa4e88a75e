"""Cases of elementwise ops, whose backward reads x again."""

import numpy as np

from toynn.testing.cases._case import Array, OpCase, differentiable, normal

SHAPES = ({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097})


def unary(
    op: str,
    *,
    bench: dict[str, dict[str, int]],
    tolerance: float,
    reason: str,
    shapes: tuple[dict[str, int], ...] = SHAPES,
    spread: int = 16,
) -> OpCase:
    """Return the case of an elementwise op.

    x lies around 0; every fourth element is ``spread`` times as large, where y is flat or straight.
    """

    def inputs(rng: np.random.Generator, n: int, **_: int) -> dict[str, Array]:
        x = normal(rng, n)
        x[::4] *= spread
        return {"x": x}

    return differentiable(
        op, inputs, shapes=shapes, bench=bench, tolerance=tolerance, reason=reason
    )
