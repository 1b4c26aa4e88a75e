"""adamw against the update formula in float64, with and without bias correction."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, normal

FROM_SCRATCH = (1e-3, 0.9, 0.95, 1e-8, 0.0, 0.9, 0.95)
LORA_STEP_3 = (3e-2, 0.9, 0.999, 1e-8, 0.1, 1 / (1 - 0.9**3), 1 / (1 - 0.999**3))
UNTOUCHED = {"scale": "a scale that is not finite leaves w, m and v untouched"}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    given = {"w": normal(rng, n), "m": normal(rng, n), "v": rng.random(n), "g": normal(rng, n)}
    given["scale"] = np.array([0.5])
    return [
        derived("adamw.step", {**given, "hp": np.array(hp)}, loses_nan=UNTOUCHED)
        for hp in (FROM_SCRATCH, LORA_STEP_3)
    ]


CASE = OpCase(
    op="adamw",
    calls=_calls,
    shapes=({"n": 1}, {"n": 130}, {"n": 0}, {"n": 4095}, {"n": 4097}, {"n": 12_288}),
    bench={"gpt2_tiny": {"n": 143_424}, "16m": {"n": 16_000_000}},
    tolerance=1e-6,
    reason="a dozen float32 roundings per element, one of them of 1 - beta2 near 0.001",
)
