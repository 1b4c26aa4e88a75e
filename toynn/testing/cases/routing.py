"""routing against a stable argsort of the scores, or of the scores + b; f multiplies weights."""

from collections.abc import Mapping

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal, shapes_of


def _inputs(
    rng: np.random.Generator, N: int, E: int, biased: int = 0, factors: int = 0, **_: int
) -> dict[str, Array]:
    p = np.exp(2 * rng.standard_normal((N, E)))
    arrays = {"p": (p / p.sum(axis=1, keepdims=True)).astype(np.float32)}
    arrays |= {"b": normal(rng, E, scale=0.3)} if biased else {}
    return arrays | ({"f": normal(rng, E)} if factors else {})


def _options(sizes: Sizes) -> dict[str, float]:
    scales = {"scale": sizes.get("tenths", 10) / 10, "eps": sizes.get("hundredths", 0) / 100}
    return {name: float(np.float32(value)) for name, value in scales.items()}


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    if entry == "forward":
        return {"b": "it only influences the choice"}
    if sizes.get("normalized"):
        return {}
    return {"p": "only a normalizing sum reads it", "weights": "only a normalizing sum reads them"}


CASE = differentiable(
    "routing",
    _inputs,
    options=_options,
    loses_nan=_loses_nan,
    shapes=shapes_of(
        "N E K",
        "37 11 3 normalized=1 tenths=25, 65 32 4",
        "3 8 8 normalized=1",  # all
        "9 1 1, 0 4 2, 20 128 1 tenths=5, 21 9 3 normalized=1 hundredths=20 biased=1",
        "21 9 3 biased=1, 33 24 5 G=6 L=2 normalized=1 biased=1",
        "33 24 5 G=6 L=2 best=1 tenths=25",
        "9 128 4 G=64 L=63",  # the most groups, of the fewest experts
        "9 12 6 G=2 L=1",  # all of a group
        "21 9 3 normalized=1 factors=1, 5 3 3 tenths=5 factors=1",
    ),
    bench={
        "qwen3_30b_a3b": {"N": 256, "E": 128, "K": 8, "normalized": 1},
        "deepseek_v3": {"N": 256, "E": 256, "K": 8, "G": 8, "L": 4, "normalized": 1, "biased": 1},
    },
    tolerance=1e-6,
    reason="a sum of up to eight scores, a quotient, a product; a gradient is a difference",
)
