"""adamw against the update formula in float64, with and without bias correction."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

FROM_SCRATCH = (1e-3, 0.9, 0.95, 1e-8, 0.0, 0.9, 0.95)
LORA_STEP_3 = (3e-2, 0.9, 0.999, 1e-8, 0.1, 1 / (1 - 0.9**3), 1 / (1 - 0.999**3))
SCALE = 0.5


def _expected(start: dict[str, Array], g: Array, hp: Array) -> dict[str, Array]:
    w, m, v = (start[name].astype(np.float64) for name in ("w", "m", "v"))
    lr, beta1, beta2, eps, weight_decay, c1, c2 = hp.astype(np.float64)
    g = g.astype(np.float64) * SCALE
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    w = w * (1 - lr * weight_decay) - lr * (c1 * m) / (np.sqrt(c2 * v) + eps)
    return {"w": w, "m": m, "v": v}


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
            flops=14 * n,
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
