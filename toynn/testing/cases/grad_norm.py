"""grad_norm against a float64 sum of squares."""

import numpy as np

from toynn.backends.reference import update
from toynn.testing.cases._case import Call, OpCase, call

BLOCK = 16384
WEIGHT_INVERSE = 0.25


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    g = rng.standard_normal(n).astype(np.float32)
    return [
        call(
            "forward",
            update.grad_norm(g.astype(np.float64), np.array([max_norm, WEIGHT_INVERSE])),
            {"g": g, "control": np.array([max_norm, WEIGHT_INVERSE])},
            free=("g",),
        )
        for max_norm in (1.0, 0.0, 1e6)
    ]


CASE = OpCase(
    op="grad_norm",
    shapes=({"n": 0}, {"n": 4097}, {"n": 1}, {"n": BLOCK}, {"n": BLOCK + 1}, {"n": 3 * BLOCK - 7}),
    bench={"gpt2_tiny": {"n": 143_424}, "16m": {"n": 16_000_000}},
    calls=_calls,
    tolerance=1e-6,
    reason="256 squares per partial sum in float32, then double",
)
