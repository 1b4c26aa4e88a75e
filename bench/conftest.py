"""Time one entry of the op-case table and check its result in the same breath."""

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn.testing.cases import CASES


@pytest.fixture
def timed(benchmark):
    """Return ``timed(op, shape, entry, n_threads)``; it puts GFLOP/s and GB/s in extra_info."""

    def run(op, shape, entry, n_threads):
        case = CASES[op]
        calls = case.calls(np.random.default_rng(7), **case.bench[shape])
        call = next(call for call in calls if call.entry == entry)
        benchmark.group = f"{op} {shape}"
        benchmark(
            getattr(getattr(kernels, op), entry),
            *call.arrays.values(),
            **call.options,
            n_threads=n_threads,
        )
        for name, expected in call.expected.items():
            error = np.abs(call.arrays[name] - expected).max()
            assert error <= case.tolerance * (1 + np.abs(expected).max()), name
        if benchmark.stats:  # not with --benchmark-disable
            seconds = benchmark.stats.stats.median
            benchmark.extra_info["GFLOP/s"] = round(call.flops / seconds / 1e9, 1)
            benchmark.extra_info["GB/s"] = round(call.nbytes / seconds / 1e9, 1)

    return run
