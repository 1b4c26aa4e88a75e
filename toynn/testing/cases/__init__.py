"""The table of op cases: one file per kernel, read by tests, gradient checks and benchmarks."""

from importlib import import_module

from toynn._kernels import OPS
from toynn.testing.cases._case import Array, Call, OpCase, Sizes, call

__all__ = ["CASES", "Array", "Call", "OpCase", "Sizes", "call"]

CASES: dict[str, OpCase] = {op: import_module(f"{__name__}.{op}").CASE for op in OPS}
