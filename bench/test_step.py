"""A whole training step: its time, and that the loss on a repeated batch falls."""

import pytest
import steps

import toynn

SHAPES = steps.TINY | {"d128_L4_T128_B8": steps.STEPS["d128_L4_T128_B8"]}
SHAPES["llama_d128_L4_T128_B8"] = steps.LLAMA["llama_d128_L4_T128_B8"]


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_step(benchmark, name, n_threads):
    shape = SHAPES[name]
    toynn.set_num_threads(n_threads)
    ids, labels = steps.draw(shape)
    step = steps.toynn_step(steps.recipe_of(shape), ids, steps.positions(shape), labels)
    first = step()
    benchmark.group = f"step {name}"
    benchmark.pedantic(step, rounds=5, iterations=4, warmup_rounds=1)
    assert step() < first
    benchmark.extra_info["tokens"] = shape.B * shape.T
