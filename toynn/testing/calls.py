"""Call a kernel from Python as the case table describes, check it, time it."""

import time
from types import ModuleType
from typing import Any

import numpy as np

import toynn._kernels as kernels
from toynn.backends.reference.pointwise import widen
from toynn.testing.cases import CASES, Array, Call


def invoke(
    op: str,
    call: Call,
    n_threads: int = 1,
    accumulate: bool = False,
    module: ModuleType | None = None,
    **replaced: Array,
) -> dict[str, Array]:
    """Call a kernel on copies, or on the arrays in ``replaced`` themselves; return its outputs.

    ``module`` is the op's module at another ISA level; None: the level in use.
    """
    arrays = {name: array.copy() for name, array in call.arrays.items()} | replaced
    _kernel(op, call, module)(**arrays, **_options(call, accumulate), n_threads=n_threads)
    return {name: arrays[name] for name in call.expected}


def check(op: str, call: Call, outputs: dict[str, Array]) -> None:
    """Raise AssertionError unless outputs are within the case's tolerance of the expected."""
    exact = call.options.get("precision", "highest") == "highest"
    tolerance = CASES[op].tolerance if exact else CASES[op].rough
    for name, expected in call.expected.items():
        error = np.abs(outputs[name] - expected).max(initial=0)
        allowed = tolerance * (1.0 + np.abs(expected).max(initial=0))
        if not error <= allowed:
            raise AssertionError(f"{op}.{call.entry}: {name} is off by {error}, over {allowed}")


def numbers(output: Array) -> Array:
    """Return the numbers of an output: what is stored in 16 bits is bfloat16."""
    return widen(output)["y"] if output.dtype == np.uint16 else output


def times(op: str, call: Call, n_threads: int, least: float = 0.1) -> list[float]:
    """Return the seconds of each call: at least five calls, and ``least`` seconds in all."""
    arrays = {name: array.copy() for name, array in call.arrays.items()}
    kernel, options = _kernel(op, call), _options(call, accumulate=False)
    spent: list[float] = []
    kernel(**arrays, **options, n_threads=n_threads)
    while sum(spent) < least or len(spent) < 5:
        start = time.perf_counter()
        kernel(**arrays, **options, n_threads=n_threads)
        spent.append(time.perf_counter() - start)
    return spent


def _kernel(op: str, call: Call, module: ModuleType | None = None) -> Any:
    return getattr(module or getattr(kernels, op), call.entry)


def _options(call: Call, accumulate: bool) -> dict[str, Any]:
    flag = {"accumulate": accumulate} if call.accumulates else {}
    return call.options | flag | dict.fromkeys(call.without)
