"""grad_norm against a float64 sum of squares."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, normal

BLOCK = 16384
WEIGHT_INVERSE = 0.25


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    g = normal(rng, n)
    controls = [np.array([most, WEIGHT_INVERSE]) for most in (1.0, 0.0, 1e6)]
    return [derived("grad_norm.forward", {"g": g, "control": control}) for control in controls]


CASE = OpCase(
    op="grad_norm",
    calls=_calls,
    shapes=({"n": 0}, {"n": 4097}, {"n": 1}, {"n": BLOCK}, {"n": BLOCK + 1}, {"n": 3 * BLOCK - 7}),
    bench={"gpt2_tiny": {"n": 143_424}, "16m": {"n": 16_000_000}},
    tolerance=1e-6,
    reason="256 squares per partial sum in float32, then double",
)
