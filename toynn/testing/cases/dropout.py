"""dropout against the same hash in NumPy's 64-bit integers."""

import numpy as np

from toynn.backends.reference.pointwise import dropout, dropout_factors
from toynn.testing.cases._case import Array, Call, OpCase, call

SEED, SITE, P = 9, 4, 0.3
DROPPING, IDENTITY = (np.array([step, active], np.int32) for step, active in ((7, 1), (7, 0)))


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    return {"x": rng.standard_normal(n).astype(np.float32), "control": DROPPING}


def _function(
    inputs: dict[str, Array], n: int, p: float = P, seed: int = SEED, site: int = SITE
) -> Array:
    return dropout(**inputs, p=p, seed=seed, site=site)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return {"dx": dy * dropout_factors(n, inputs["control"], P, SEED, SITE)}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    x = _inputs(rng, n)["x"]
    return [
        call(
            "forward",
            {"y": _function({"x": x.astype(np.float64), "control": control}, n)},
            {"x": x, "control": control},
            p=P,
            seed=SEED,
            site=SITE,
        )
        for control in (DROPPING, IDENTITY)
    ]


CASE = OpCase(
    op="dropout",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}, {"n": 8193}),
    bench={"tinyllama": {"n": 256 * 2048}},
    calls=_calls,
    tolerance=2e-7,
    reason="a product, and the rounding of its factor",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
