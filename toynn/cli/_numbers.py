"""Numbers on the command line: parsed, within bounds, or refused with the bounds."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

import numpy as np

__all__ = ["real", "whole"]

LARGEST = 2**31 - 1


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """Return a parser of whole numbers from least to most."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}; got {text!r}")
        return number

    return parse


def real(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers from least (or only above it) to most, finite as float32."""
    bounds = f"above {least:g}" if above else f"of at least {least:g}"
    if most < math.inf:
        bounds += f" and at most {most:g}"

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        with np.errstate(over="ignore"):
            single = float(np.float32(number))  # what kernels will see
        if not (math.isfinite(single) and least <= number <= most) or (above and single <= least):
            raise ArgumentTypeError(f"must be a number {bounds}; got {text!r}")
        return number

    return parse
