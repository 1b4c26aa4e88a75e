"""rounding: to float16 as NumPy does it, to bfloat16 by arithmetic in float64."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, derived, shapes_of


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    # From float16's subnormal numbers up, and ties between adjacent numbers of both types.
    x = (rng.standard_normal(n) * np.exp2(rng.integers(-26, 12, n))).astype(np.float32)
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 3 * 2**-25], np.float32)
    x[: ties.size] = ties[:n]
    narrow = derived("rounding.narrow", {"x": x})
    both = [derived("rounding.forward", {"x": x}, brain=brain) for brain in (0, 1)]
    return [*both, narrow, derived("rounding.widen", narrow.expected)]


CASE = OpCase(
    op="rounding",
    calls=_calls,
    shapes=shapes_of("n", "1, 100, 0, 4097, 70001"),
    bench={"smollm2_135m_ffn": {"n": 576 * 1536}},
    tolerance=1e-30,
    reason="rounding has one right answer",
)
