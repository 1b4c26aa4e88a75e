"""The gated delta rule at its door: a length beyond all rows is that of the rows."""

import numpy as np
import pytest

from toynn._kernels import delta

T, D, E = 5, 2, 3


@pytest.mark.parametrize("length", [2**60, 2**63 - 1])
def test_a_length_beyond_all_rows_is_that_of_the_rows(length):
    rng = np.random.default_rng(0)
    x, dy, g, c = (rng.standard_normal((T, n)).astype(np.float32) for n in (2 * D + E, E, 1, 1))
    results = []
    for each in (T, length):
        y, states = np.zeros((T, E), np.float32), np.zeros((1, 1, 1, D, E), np.float32)
        dx, dg, dc = (np.zeros_like(like) for like in (x, g, c))
        delta.forward(y, states, x, g, c, length=each)
        delta.backward(dx, dg, dc, dy, x, g, c, states, length=each)
        results.append([y, states, dx, dg, dc])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert np.any(results[0][2])
