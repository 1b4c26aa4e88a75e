"""valid_rows against NumPy's flatnonzero."""

import numpy as np

from toynn.testing.cases._case import Call, OpCase, call, shapes_of

IGNORED = -100


def _calls(rng: np.random.Generator, N: int, share: int) -> list[Call]:
    """Make labels of which ``share`` percent are not IGNORED."""
    labels = rng.integers(0, 1000, N).astype(np.int32)
    labels[rng.permutation(N)[N * share // 100 :]] = IGNORED
    counting = np.flatnonzero(labels != IGNORED)
    rows, picked = np.zeros(N, np.int64), np.full(N, IGNORED)
    rows[: counting.size], picked[: counting.size] = counting, labels[counting]
    expected = {"rows": rows, "picked": picked, "count": np.array([counting.size])}
    return [call("forward", expected, {"labels": labels})]


CASE = OpCase(
    op="valid_rows",
    shapes=shapes_of(
        "N share",
        "100 40, 33 100, 7 0",
        "700 50",  # more than a group of threads takes at a time
        "0 0",
    ),
    bench={"tokens_2048": {"N": 2048, "share": 40}},
    calls=_calls,
    tolerance=1e-9,
    reason="whole numbers",
)
