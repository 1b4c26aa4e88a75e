"""dpo against its formula in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array
from toynn.testing.cases._preference import preference_case

OPTIONS: dict[str, Any] = {"beta": 0.25, "smoothing": 0.125}
UNREAD = {"sums": "of prompts, and from count on", "reference": "from count on"}


def inputs(rng: np.random.Generator, S: int, n: int) -> dict[str, Array]:
    """Return scores of S sequences, of which the first n count."""
    return {
        "sums": rng.uniform(0.1, 30, (S, 2)).astype(np.float32),
        "reference": -rng.uniform(0.1, 30, S).astype(np.float32),
        "count": np.array([n], np.int32),
    }


CASE = preference_case("dpo", inputs, OPTIONS, UNREAD)
