"""Smallest shapes, with which CI runs every benchmark once: those of BENCH_SMALLEST=1."""

import os
from typing import TypeVar

__all__ = ["smallest"]

Value = TypeVar("Value")


def smallest(usual: Value, small: Value) -> Value:
    """Return the small value where the environment has BENCH_SMALLEST, else the usual one."""
    return small if os.environ.get("BENCH_SMALLEST") else usual
