"""Cases of ops that make each element of y from one of x, which their backward reads again."""

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
    """Return the case of such an op.

    x lies around 0 and, every fourth one, ``spread`` times as far out: where y is flat or straight.
    """

    def inputs(rng: np.random.Generator, n: int, **_: int) -> dict[str, Array]:
        x = normal(rng, n)
        x[::4] *= spread
        return {"x": x}

    return differentiable(
        op, inputs, shapes=shapes, bench=bench, tolerance=tolerance, reason=reason
    )
