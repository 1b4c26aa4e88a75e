"""Sampling from a table of logits."""

import numpy as np
import pytest
from fake_recipe import FakeEngine

from toynn.errors import ConfigError
from toynn.generate import sample


@pytest.fixture
def engine():
    """After token t comes t + 1, or less often t + 2 (modulo 10); a window of 4 tokens."""
    engine = FakeEngine(vocab=10, context=4)
    engine.table[:] = -30
    for t in range(10):
        engine.table[t, (t + 1) % 10] = 2
        engine.table[t, (t + 2) % 10] = 1
    return engine


def test_greedy_goes_on_past_the_context(engine):
    assert sample(engine, [7], 6, temperature=0) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [7], 6, temperature=1, top_k=1) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [1, 2, 3, 4, 5, 6], 1, temperature=0) == [7]
    assert sample(engine, [7], 0) == []


def test_model_sees_the_newest_tokens_of_a_full_window(engine):
    windows = []
    logits = engine.logits
    engine.logits = lambda ids, batch: windows.append(ids.tolist()) or logits(ids)
    sample(engine, [1, 2, 3], 3, temperature=0)
    assert windows == [[1, 2, 3, 0], [1, 2, 3, 4], [2, 3, 4, 5]]


def test_draws_follow_the_probabilities(engine):
    draws = [sample(engine, [0], 1, temperature=1, seed=seed)[0] for seed in range(600)]
    assert set(draws) == {1, 2}
    share = np.mean(np.array(draws) == 1)
    assert share == pytest.approx(1 / (1 + np.exp(-1)), abs=0.06)  # three standard deviations
    colder = [sample(engine, [0], 1, temperature=0.25, seed=seed)[0] for seed in range(200)]
    assert np.mean(np.array(colder) == 1) > 0.95


def test_seed_decides(engine):
    runs = [sample(engine, [0], 30, temperature=1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1], {"temperature": -1}, "must not be negative"),
        ([1], {"temperature": float("nan")}, "must not be negative"),
        ([1], {"top_k": -1}, "must not be negative"),
    ],
)
def test_bad_requests(engine, prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        sample(engine, prompt, 1, **options)
