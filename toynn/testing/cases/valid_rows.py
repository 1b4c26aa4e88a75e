"""valid_rows against NumPy's flatnonzero."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, call

IGNORED = -100


def _calls(rng: np.random.Generator, N: int, share: int) -> list[Call]:
    """Make labels of which ``share`` percent are valid."""
    labels = rng.integers(0, 1000, N).astype(np.int32)
    labels[rng.permutation(N)[N * share // 100 :]] = IGNORED
    counting = np.flatnonzero(labels != IGNORED)
    rows, picked = np.zeros(N, np.int64), np.full(N, IGNORED)
    rows[: counting.size], picked[: counting.size] = counting, labels[counting]
    expected = {"rows": rows, "picked": picked, "count": np.array([counting.size])}
    return [call("forward", expected, {"labels": labels})]


CASE = OpCase(
    op="valid_rows",
    shapes=(
        {"N": 100, "share": 40},
        {"N": 33, "share": 100},
        {"N": 7, "share": 0},
        {"N": 700, "share": 50},  # more than a group of threads takes at a time
        {"N": 0, "share": 0},
    ),
    bench={"tokens_2048": {"N": 2048, "share": 40}},
    calls=_calls,
    tolerance=1e-9,
    reason="whole numbers",
)
