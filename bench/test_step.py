"""A whole training step: its time, and that the loss of a batch seen again and again falls."""

import numpy as np
import pytest
import steps

SHAPES = steps.TINY | {"d128_L4_T128_B8": steps.STEPS["d128_L4_T128_B8"]}
SHAPES["llama_d128_L4_T128_B8"] = steps.LLAMA["llama_d128_L4_T128_B8"]


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_step(benchmark, name, n_threads):
    shape = SHAPES[name]
    ids, labels = np.random.default_rng(0).integers(0, shape.vocab, (2, shape.B * shape.T))
    step = steps.toynn_step(shape, ids, labels, n_threads)
    first = step()
    benchmark.group = f"step {name}"
    benchmark.pedantic(step, rounds=5, iterations=4, warmup_rounds=1)
    assert step() < first
    benchmark.extra_info["tokens"] = shape.B * shape.T
