"""Two weights that learn the exclusive or, as in README: the smallest step for `toynn tape`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from toynn import ops
from toynn.errors import ConfigError
from toynn.session import Session

CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)


class Xor:
    """A step of twelve kernel calls, with the methods of toynn.jobs.tapes.Shown."""

    title, text = "XOR", "the corners (-1, -1), (-1, 1), (1, -1), (1, 1), labels 0, 1, 1, 0"

    def recorded(self, variant: str = "") -> tuple[str, Any]:
        """Record the step; return "as it is" and a session. Raises ConfigError for a variant."""
        if variant:
            raise ConfigError(f"--compare {variant}: XOR is recorded in one way only")
        return "as it is", self.ready()[0]

    def ready(self) -> tuple[Any, Callable[[], object]]:
        """Return a session, and a function that takes a step."""
        draw, s = np.random.default_rng(7).normal, Session()
        w1, w2 = s.parameter("w1", draw(size=(8, 2))), s.parameter("w2", draw(size=(2, 8)))
        x, labels = s.input("x", (4, 2)), s.input("labels", (4,), "i32")
        logits = ops.linear(s, ops.silu(s, ops.linear(s, x, w1)), w2)
        step = s.minimize(ops.cross_entropy(s, logits, labels), lr=1e-2)
        return s, lambda: step(x=CORNERS, labels=[0, 1, 1, 0])
