"""dropout against plain Python integers: the mask, one element after the other."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

MASK = 2**64 - 1
SEED, SITE, P = 9, 4, 0.3
DROPPING, IDENTITY = (np.array([step, active], np.int32) for step, active in ((7, 1), (7, 0)))


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def factors(n: int, control: Array, p: float, seed: int, site: int) -> Array:
    """Return what each of ``n`` elements is multiplied by."""
    p = float(np.float32(p))
    step, active = (int(value) for value in control)
    key = _splitmix(_splitmix(_splitmix(seed) ^ step) ^ site)
    hashes = (
        _splitmix((key + i // 32 * 16 + i % 16) & MASK) >> (32 if i % 32 >= 16 else 0)
        for i in range(n)
    )
    kept = [h % 2**32 >= int(p * 2**32) or not active for h in hashes]
    return np.array(kept, float) / (1 - p if active else 1)


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    return {"x": rng.standard_normal(n).astype(np.float32), "control": DROPPING}


def _function(
    inputs: dict[str, Array], n: int, p: float = P, seed: int = SEED, site: int = SITE
) -> Array:
    y: Array = inputs["x"] * factors(n, inputs["control"], p, seed, site)
    return y


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return {"dx": dy * factors(n, inputs["control"], P, SEED, SITE)}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    x = _inputs(rng, n)["x"]
    return [
        call(
            "forward",
            {"y": _function({"x": x.astype(np.float64), "control": control}, n)},
            {"x": x, "control": control},
            in_place={"y": "x"},
            p=P,
            seed=SEED,
            site=SITE,
            flops=n,
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
