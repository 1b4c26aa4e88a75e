"""adamw against the update formula in float64, with and without bias correction."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, normal, shapes_of

FROM_SCRATCH = (1e-3, 0.9, 0.95, 1e-8, 0.0, 0.9, 0.95)
LORA_STEP_3 = (3e-2, 0.9, 0.999, 1e-8, 0.1, 1 / (1 - 0.9**3), 1 / (1 - 0.999**3))
UNTOUCHED = {"scale": "a scale that is not finite leaves w, m and v untouched"}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    arrays = {"w": normal(rng, n), "m": normal(rng, n), "v": rng.random(n), "g": normal(rng, n)}
    arrays["scale"] = np.array([0.5])
    return [
        derived("adamw.step", {**arrays, "hp": np.array(hp)}, loses_nan=UNTOUCHED)
        for hp in (FROM_SCRATCH, LORA_STEP_3)
    ]


CASE = OpCase(
    op="adamw",
    calls=_calls,
    shapes=shapes_of("n", "1, 130, 0, 4095, 4097, 12288"),
    bench={"gpt2_tiny": {"n": 143_424}, "16m": {"n": 16_000_000}},
    tolerance=1e-6,
    reason="a dozen float32 roundings per element, one of them of 1 - beta2 near 0.001",
)
