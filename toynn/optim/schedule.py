"""The learning rate by step: warm-up, then one of four shapes.

With n steps, w of them warm-up, and p = (step - w) / (n - w) the share of the rest that is done:

    step < w   lr_max (step + 1) / w
    cosine     lr_min + (lr_max - lr_min) (1 + cos(pi p)) / 2
    linear     lr_min + (lr_max - lr_min) (1 - p)
    wsd        lr_max until p = 0.8, then straight down to lr_min (warm-up, stable, decay)
    constant   lr_max

From step n on p is 1. Sources: cosine, Loshchilov & Hutter 2017, arXiv:1608.03983; wsd, Hu et al.
2024, arXiv:2404.06395, section 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from toynn.errors import ConfigError
from toynn.numerics.adamw_row import RANGES
from toynn.options import check_fields, option, real, whole

WARMUP = 100  # steps, or a tenth of a shorter run

WSD_STABLE = 0.8  # share of the steps after warm-up that wsd spends at lr_max

#: For each name, the rate after a share p, between lr_min (0) and lr_max (1).
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p)),
    "linear": lambda p: 1 - p,
    "wsd": lambda p: 1.0 if p < WSD_STABLE else (1 - p) / (1 - WSD_STABLE),
    "constant": lambda p: 1.0,
}


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step, counted from 0: ``schedule(step)``.

    Examples
    --------
    >>> schedule = Schedule("cosine", lr_max=1e-3, steps=100, warmup_steps=10)
    >>> schedule(0), schedule(9), schedule(100)
    (0.0001, 0.001, 0.0001)

    Raises
    ------
    ConfigError
        If the name is unknown or a number is out of range.
    """

    name: str = option(words=tuple(SCHEDULES))
    lr_max: float = option(read=real(0, RANGES["lr"][1], above=True))
    steps: int = option(read=whole(1), compared=False)  # an extended run has more
    warmup_steps: int = option(default=0, read=whole(0))
    min_lr_ratio: float = option(default=0.1, read=real(0, 1))

    def __post_init__(self) -> None:
        check_fields(self, "Schedule: ")

    def __call__(self, step: int) -> float:
        """Return the learning rate of ``step``."""
        if step < 0:
            raise ConfigError(f"Schedule: steps count from 0; got {step}")
        if step < self.warmup_steps:
            return self.lr_max * (step + 1) / self.warmup_steps
        rest = self.steps - self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / rest) if rest > 0 else 1.0
        lr_min = self.lr_max * self.min_lr_ratio
        return lr_min + (self.lr_max - lr_min) * SCHEDULES[self.name](done)


def usual_warmup(steps: int) -> int:
    """Return the default number of warm-up steps."""
    return min(WARMUP, steps // 10)
