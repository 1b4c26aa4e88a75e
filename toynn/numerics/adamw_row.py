"""The seven floats that one step of AdamW reads: their names and ranges."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError

SLOTS = ("lr", "beta1", "beta2", "eps", "weight_decay", "c1", "c2")
#: The range of each slot. A step moves a weight by about lr, and weights are rarely above 1.
RANGES = {
    "lr": (0.0, 1e4),
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "eps": (float(np.finfo(np.float32).tiny), math.inf),
    "weight_decay": (0.0, math.inf),
    "c1": (0.0, math.inf),
    "c2": (float(np.finfo(np.float32).tiny), math.inf),
}
#: The rounding of 1 - beta in float32, and the tolerance of a correction.
_ROUNDING, _SLACK = 2.0**-23, 1.01


def check_row(name: str, row: Sequence[float] | NDArray[np.float32]) -> None:
    """Raise ConfigError for a row that would ruin the weights in one step.

    Each slot has its range. lr * weight_decay is at most 1: decay takes at most all of a weight. In
    both conventions a correction is at most 1 / (1 - beta), its value at the first step.
    """
    values = row.tolist() if isinstance(row, np.ndarray) else row
    for value, (slot, (least, most)) in zip(values, RANGES.items(), strict=True):
        if not (least <= value <= most and value < math.inf):
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise ConfigError(f"{name}: {slot} must be a finite number, {bounds}; got {value:g}")
    lr, beta1, beta2, _, weight_decay, c1, c2 = values
    decay = lr * weight_decay
    if decay > _SLACK:
        raise ConfigError(
            f"{name}: lr * weight_decay must be at most 1 (all of a weight); got {decay:g}"
        )
    for slot, correction, beta in (("1", c1, beta1), ("2", c2, beta2)):
        left = 1 - beta
        if correction * (left - _ROUNDING) > _SLACK:
            raise ConfigError(
                f"{name}: c{slot} must be at most 1 / (1 - beta{slot}) = {1 / left:g}; got "
                f"{correction:g}"
            )
