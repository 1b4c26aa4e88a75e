"""The products of a linear layer at the shapes of GPT-2 124M, a tiny model and a 1.1B Llama."""

import pytest

from toynn.testing.cases import CASES

ENTRIES = [
    (shape, entry)
    for shape, sizes in CASES["matmul"].bench.items()
    for entry in ("forward", "backward_input", "backward_weight")
    if entry != "backward_weight" or "type" not in sizes  # quantized weights are frozen
]


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("shape", "entry"), ENTRIES)
def test_matmul(timed, shape, entry, n_threads):
    timed("matmul", shape, entry, n_threads)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("entry", ["forward", "backward_input", "backward_weight"])
def test_matmul_in_a_precision(timed, entry, precision, n_threads):
    timed("matmul", "gpt2_fc", entry, n_threads, precision=precision)
