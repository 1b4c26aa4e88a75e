"""Every kernel of the op-case table: values, threads, NaN, refusals, gradients."""

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn.testing.cases import CASES, Call

pytestmark = pytest.mark.kernels

ROWS = [
    pytest.param(op, sizes, id=f"{op}-{'x'.join(str(n) for n in sizes.values())}")
    for op, case in CASES.items()
    for sizes in case.shapes
]


def calls(op, sizes):
    return CASES[op].calls(np.random.default_rng(7), **sizes)


def run(op, call: Call, n_threads=1, accumulate=False, **replaced):
    arrays = {name: array.copy() for name, array in call.arrays.items()} | replaced
    options = dict(call.options)
    if call.accumulates:
        options["accumulate"] = accumulate
    getattr(getattr(kernels, op), call.entry)(*arrays.values(), **options, n_threads=n_threads)
    return {name: arrays[name] for name in call.expected}


def assert_close(got, expected, tolerance):
    scale = 1 + np.abs(expected).max(initial=0)
    assert np.abs(got - expected).max(initial=0) <= tolerance * scale


@pytest.mark.parametrize(("op", "sizes"), ROWS)
def test_matches_float64(op, sizes):
    for call in calls(op, sizes):
        got = run(op, call)
        for name, expected in call.expected.items():
            assert_close(got[name], expected, CASES[op].tolerance)


@pytest.mark.parametrize(("op", "sizes"), ROWS)
def test_threads_agree_bit_for_bit(op, sizes):
    for call in calls(op, sizes):
        one = run(op, call)
        for n_threads in (2, 5):
            many = run(op, call, n_threads)
            for name in one:
                assert one[name].tobytes() == many[name].tobytes(), (call.entry, name, n_threads)


@pytest.mark.parametrize(("op", "sizes"), ROWS)
def test_accumulate_adds(op, sizes):
    for call in calls(op, sizes):
        if not call.accumulates:
            continue
        start = {name: np.full_like(call.arrays[name], 0.5) for name in call.accumulates}
        got = run(op, call, accumulate=True, **start)
        for name in call.accumulates:
            assert_close(got[name], call.expected[name] + 0.5, CASES[op].tolerance)
