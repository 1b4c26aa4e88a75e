"""embedding against NumPy's fancy indexing, and its transpose."""

import numpy as np

from toynn.testing.cases._case import Array, Call, derived, differentiable, normal, shapes_of
from toynn.testing.cases.quants import SCALES, matrix


def _inputs(rng: np.random.Generator, N: int, V: int, C: int, **_: int) -> dict[str, Array]:
    return {"w": normal(rng, V, C), "ids": rng.integers(0, V, N).astype(np.int32)}


def _calls(rng: np.random.Generator, N: int, V: int, C: int, type: int = 0) -> list[Call]:
    arrays = _inputs(rng, N, V, C)
    if type:  # quantized weights are frozen
        name, arrays["w"], exact = matrix(rng, type, V, C)
        return [derived("embedding.forward", arrays, exact={"w": exact}, type=name)]
    arrays["dy"] = normal(rng, N, C)
    return [derived("embedding.forward", arrays), derived("embedding.backward", arrays, V=V)]


CASE = differentiable(
    "embedding",
    _inputs,
    calls=_calls,
    shapes=(
        *shapes_of(
            "N V C",
            "1 1 1, 37 11 130, 9 300 65, 0 5 8, 5 3 0, 256 16 64",
        ),
        *({"N": 20, "V": 7, "C": 512, "type": type} for type in SCALES),
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257, "C": 768}, "bytes": {"N": 2048, "V": 256, "C": 256}},
    tolerance=2e-6,
    reason="forward copies; backward adds up to 40 rows in float32, in the order of the ids",
)
