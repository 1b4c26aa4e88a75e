"""kto against its formula in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array
from toynn.testing.cases._preference import preference_case
from toynn.testing.cases.dpo import UNREAD, inputs

OPTIONS: dict[str, Any] = {"beta": 0.25, "good": 1.0, "bad": 1.5}


def _inputs(rng: np.random.Generator, S: int, n: int) -> dict[str, Array]:
    return inputs(rng, S, n) | {
        "kl": np.array([1.5], np.float32),
        "wanted": rng.integers(0, 2, S).astype(np.int32),
    }


CASE = preference_case("kto", _inputs, OPTIONS, UNREAD)
