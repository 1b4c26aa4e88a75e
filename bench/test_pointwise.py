"""Every kernel that is bound by memory or by exp, at the shapes of GPT-2 124M."""

import numpy as np
import pytest

from toynn.testing.cases import CASES

ENTRIES = [
    (op, shape, call.entry)
    for op, case in CASES.items()
    if op not in ("matmul", "attention", "quants")  # they have files of their own
    for shape in case.bench
    for call in case.calls(np.random.default_rng(7), **case.shapes[0])
]


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("op", "shape", "entry"), ENTRIES)
def test_pointwise(timed, op, shape, entry, n_threads):
    timed(op, shape, entry, n_threads)
