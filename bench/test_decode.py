"""Generation: the time of a few tokens, and that each call gives the same tokens."""

import decode
import numpy as np
import pytest

SHAPE = decode.SHAPES["llama_d128_L4_past_100"]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_decode(benchmark, n_threads):
    ids = np.random.default_rng(0).integers(0, SHAPE.vocab, SHAPE.past).tolist()
    call = decode.toynn_decode(SHAPE, ids, n_threads)
    benchmark.group = "decode"
    tokens = benchmark.pedantic(call, rounds=5, iterations=4, warmup_rounds=1)
    assert tokens == call() and len(tokens) == decode.TOKENS
    benchmark.extra_info["tokens"] = decode.TOKENS
