"""adamw against the update formula in float64, with and without bias correction."""

import numpy as np

from toynn.backends.reference import update
from toynn.testing.cases._case import Array, Call, OpCase, call

FROM_SCRATCH = (1e-3, 0.9, 0.95, 1e-8, 0.0, 0.9, 0.95)
LORA_STEP_3 = (3e-2, 0.9, 0.999, 1e-8, 0.1, 1 / (1 - 0.9**3), 1 / (1 - 0.999**3))
SCALE = 0.5


def _expected(start: dict[str, Array], g: Array, hp: Array) -> dict[str, Array]:
    exact = {name: value.astype(np.float64) for name, value in {**start, "g": g, "hp": hp}.items()}
    return update.adamw(**exact, scale=np.array([SCALE]))


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    start = {
        "w": rng.standard_normal(n).astype(np.float32),
        "m": rng.standard_normal(n).astype(np.float32),
        "v": rng.random(n).astype(np.float32),
    }
    g = rng.standard_normal(n).astype(np.float32)
    return [
        call(
            "step",
            _expected(start, g, hp),
            {"g": g, "hp": hp, "scale": np.array([SCALE])},
            initial=start,
            loses_nan={"scale": "a scale that is not finite leaves w, m and v untouched"},
        )
        for hp in (np.array(FROM_SCRATCH, np.float32), np.array(LORA_STEP_3, np.float32))
    ]


CASE = OpCase(
    op="adamw",
    shapes=({"n": 1}, {"n": 130}, {"n": 0}, {"n": 4095}, {"n": 4097}, {"n": 12_288}),
    bench={"gpt2_tiny": {"n": 143_424}, "16m": {"n": 16_000_000}},
    calls=_calls,
    tolerance=1e-6,
    reason="a dozen float32 roundings per element, one of them of 1 - beta2 near 0.001",
)
