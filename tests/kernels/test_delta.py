"""The gated delta rule: an L beyond all rows, whose scratch memory no machine has, is refused."""

import numpy as np
import pytest

from toynn._kernels import delta

T, D, E = 5, 2, 3


@pytest.mark.parametrize("L", [0, 257, 2**60, 2**63 - 1])
def test_a_length_beyond_all_rows_is_refused(L):
    x, g, c = (np.ones((T, n), np.float32) for n in (2 * D + E, 1, 1))
    y, dy = np.zeros((2, T, 1, E), np.float32)
    states = np.zeros((1, 1, 1, D, E), np.float32)
    dx, dg, dc = (np.zeros_like(like) for like in (x, g, c))
    with pytest.raises(ValueError, match=rf"^delta.forward: .* L from 1 to 256; got L = {L},"):
        delta.forward(y, states, x, g, c, L=L)
    with pytest.raises(ValueError, match=rf"^delta.backward: .* got L = {L},"):
        delta.backward(dx, dg, dc, dy, x, g, c, states, L=L)
