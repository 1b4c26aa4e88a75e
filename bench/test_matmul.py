"""The three products of a linear layer at the shapes of GPT-2 124M and of a tiny model."""

import pytest

from toynn.testing.cases import CASES


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("entry", ["forward", "backward_input", "backward_weight"])
@pytest.mark.parametrize("shape", CASES["matmul"].bench)
def test_matmul(timed, shape, entry, n_threads):
    timed("matmul", shape, entry, n_threads)
