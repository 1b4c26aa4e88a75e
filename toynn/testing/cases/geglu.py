"""geglu against gate (1 + tanh(..)) / 2 * up, or erf instead of tanh."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of


def _inputs(rng: np.random.Generator, n: int, exact: int = 0) -> dict[str, Array]:
    gate, up = normal(rng, 2, n)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


CASE = differentiable(
    "geglu",
    _inputs,
    shapes=shapes_of("n", "1, 37, 0, 4096, 4097, 4097 exact=1"),
    bench={"gemma3_270m": {"n": 256 * 2048}},
    tolerance=4e-7,
    reason="a few roundings; exp within 2, erf within 5 units in the last place",
)
