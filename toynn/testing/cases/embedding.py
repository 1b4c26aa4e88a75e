"""embedding against NumPy's fancy indexing, and its transpose."""

import numpy as np

from toynn.testing.cases._case import Array, Call, derived, differentiable, normal
from toynn.testing.cases.quants import SCALES, matrix


def _inputs(rng: np.random.Generator, N: int, V: int, C: int, **_: int) -> dict[str, Array]:
    return {"w": normal(rng, V, C), "ids": rng.integers(0, V, N).astype(np.int32)}


def _calls(rng: np.random.Generator, N: int, V: int, C: int, type: int = 0) -> list[Call]:
    given = _inputs(rng, N, V, C)
    if type:  # quantized weights are frozen
        name, given["w"], exact = matrix(rng, type, V, C)
        return [derived("embedding.forward", given, exact={"w": exact}, type=name)]
    given["dy"] = normal(rng, N, C)
    return [derived("embedding.forward", given), derived("embedding.backward", given, V=V)]


CASE = differentiable(
    "embedding",
    _inputs,
    calls=_calls,
    shapes=(
        {"N": 1, "V": 1, "C": 1},
        {"N": 37, "V": 11, "C": 130},
        {"N": 9, "V": 300, "C": 65},
        {"N": 0, "V": 5, "C": 8},
        {"N": 5, "V": 3, "C": 0},
        {"N": 256, "V": 16, "C": 64},
        *({"N": 20, "V": 7, "C": 512, "type": type} for type in SCALES),
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257, "C": 768}, "bytes": {"N": 2048, "V": 256, "C": 256}},
    tolerance=2e-6,
    reason="forward copies; backward adds up to 40 rows in float32, in the order of the ids",
)
