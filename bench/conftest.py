"""Check the result of one entry of the op-case table, then time it."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn.testing.calls import check, invoke
from toynn.testing.cases import CASES


@lru_cache(maxsize=1)  # the entries of a shape run one after another
def calls(op, shape):
    return CASES[op].calls(np.random.default_rng(7), **CASES[op].bench[shape])


@pytest.fixture
def timed(benchmark):
    """Return ``timed(op, shape, entry, n_threads)``; it puts GFLOP/s and GB/s in extra_info."""

    def run(op, shape, entry, n_threads, **options):
        call = next(call for call in calls(op, shape) if call.entry == entry)
        call = replace(call, options=call.options | options)
        check(op, call, invoke(op, call, n_threads))
        benchmark.group = f"{op} {shape}"
        arrays = {name: array.copy() for name, array in call.arrays.items()}
        function = getattr(getattr(kernels, op), entry)
        benchmark(function, **arrays, **call.options, n_threads=n_threads)
        if benchmark.stats:  # not with --benchmark-disable
            seconds = benchmark.stats.stats.median
            flops, nbytes = CASES[op].work(call, CASES[op].bench[shape])
            benchmark.extra_info["GFLOP/s"] = round(flops / seconds / 1e9, 1)
            benchmark.extra_info["GB/s"] = round(nbytes / seconds / 1e9, 1)

    return run
