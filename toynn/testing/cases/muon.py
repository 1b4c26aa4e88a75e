"""muon against its formulas in float64. Newton-Schulz, of products: tests/optim/test_muon.py."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, normal, shapes_of

HP = np.array([2e-2, 0.95, 0.9, 1e-8, 0.1, 1.0, 1.0])
UNTOUCHED = {
    "scale": "a scale that is not finite leaves m and w untouched",
    "hp": "one or two of its numbers are read",
}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    arrays = {name: normal(rng, n) for name in ("w", "m", "g", "u", "x", "z")}
    arrays |= {"hp": HP, "scale": np.array([0.5]), "squares": np.array([n + 1.0])}
    numbers = {"alpha": 3.4445, "beta": -4.775, "factor": 2.5}
    loses = dict.fromkeys(("momentum", "step"), UNTOUCHED)
    return [
        derived(f"muon.{entry}", arrays, numbers, loses_nan=loses.get(entry))
        for entry in ("momentum", "start", "mix", "step")
    ]


CASE = OpCase(
    op="muon",
    calls=_calls,
    shapes=shapes_of("n", "1, 130, 0, 4095, 4097, 12288"),
    bench={"gpt2_tiny": {"n": 65_536}, "16m": {"n": 16_000_000}},
    tolerance=1e-6,
    reason="a few float32 roundings per element",
)
