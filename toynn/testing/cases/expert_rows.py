"""expert_rows against NumPy's stable argsort and bincount."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, shapes_of


def _calls(rng: np.random.Generator, N: int, K: int, E: int) -> list[Call]:
    """Choose among every second expert, so that some have no rows."""
    some = np.arange(0, E, 2)
    chosen = some[rng.integers(0, some.size, (N, K))].astype(np.int32)
    return [
        derived("expert_rows.forward", {"experts": chosen}, {"E": E}),
        derived("expert_rows.even", {}, {"E": E, "M": N}),
    ]


CASE = OpCase(
    op="expert_rows",
    calls=_calls,
    shapes=shapes_of("N K E", "37 3 11, 65 4 128, 5 1 1, 0 2 4"),
    bench={"qwen3_30b_a3b": {"N": 256, "K": 8, "E": 128}},
    tolerance=1e-9,
    reason="whole numbers",
)
