"""gaussian_topk against max(x - mean - z std, 0); no number lies near the cutoff."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of

Z = 0.5
NEAR = 0.02  # of the cutoff, in standard deviations: the gradient jumps there


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    x = normal(rng, N, C)
    for _ in range(4):  # what moves a number moves the cutoff too, a little
        above = x - x.mean(axis=1, keepdims=True) - Z * x.std(axis=1, keepdims=True)
        x += np.where((np.abs(above) < NEAR) & (C > 2), 3 * NEAR * np.sign(above), 0)
    return {"x": x.astype(np.float32)}


CASE = differentiable(
    "gaussian_topk",
    _inputs,
    options=lambda sizes: {"z": Z},
    loses_nan=lambda entry, sizes: (
        {"dy": "below the cutoff it counts for nothing"} if entry == "backward" else {}
    ),
    shapes=shapes_of("N C", "37 130, 3 65, 0 8, 5 768"),
    bench={"gemma3n_e2b": {"N": 256, "C": 8192}},
    tolerance=3e-6,
    reason="float32 sums of up to 768 terms, and a difference from their mean",
)
