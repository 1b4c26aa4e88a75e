"""softcap against cap tanh(x / cap)."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of

CAP = 3.0


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Return values around 0: some far below the cap, every fourth one far above it."""
    x = normal(rng, n)
    x[::4] *= 16
    x[1::4] *= 1e-3
    return {"x": x}


CASE = differentiable(
    "softcap",
    _inputs,
    options=lambda sizes: {"cap": CAP},
    shapes=shapes_of("n", "1, 37, 0, 4096, 4097"),
    bench={"gemma2_logits": {"n": 32 * 256000}},
    tolerance=3e-7,
    reason="tanh within 2 units in the last place, a few roundings",
)
