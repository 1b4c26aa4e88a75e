"""Generation: which token comes next, from a table of logits."""

from itertools import islice

import numpy as np
import pytest
from fake_recipe import FakeDecoder, FakeRecipe

from toynn.errors import ConfigError, NonFiniteError
from toynn.generation.drawing import generate, sample


@pytest.fixture
def engine():
    """After token t comes t + 1, or less often t + 2 (modulo 10); a window of 4 tokens."""
    engine = FakeRecipe(vocab=10, context=4)
    engine.table[:] = -30
    for t in range(10):
        engine.table[t, (t + 1) % 10] = 2
        engine.table[t, (t + 2) % 10] = 1
    return engine


def test_greedy_goes_on_past_the_context(engine):
    assert sample(engine, [7], 6, temperature=0) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [7], 6, temperature=1, top_k=1) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [7], 6, temperature=1, top_p=0.7) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [7], 6, temperature=1e-300) == [8, 9, 0, 1, 2, 3]
    assert sample(engine, [1, 2, 3, 4, 5, 6], 1, temperature=0) == [7]
    assert sample(engine, [7], 0) == []


def test_each_token_is_read_once_until_the_context_is_full(engine):
    reads = []

    class Watched(FakeDecoder):
        def read(self, ids):
            reads.append((self.past, list(ids)))
            return super().read(ids)

    engine.decoder = lambda: Watched(engine)
    sample(engine, [1, 2], 5, temperature=0)
    assert reads == [(0, [1, 2]), (2, [3]), (3, [4]), (0, [4, 5]), (2, [6])]
    reads.clear()
    sample(engine, [1, 2, 3, 4, 5], 1, temperature=0)
    assert reads == [(0, [4, 5])]
    engine.context = 1
    reads.clear()
    sample(engine, [1], 2, temperature=0)
    assert reads == [(0, [1]), (0, [2])]


def test_tokens_come_one_by_one(engine):
    endless = generate(engine, [0], 10**12, temperature=0)
    assert list(islice(endless, 3)) == [1, 2, 3]
    assert next(endless) == 4


def test_a_token_of_stop_ends_it_and_is_not_told(engine):
    assert sample(engine, [7], 6, temperature=0, stop={1, 5}) == [8, 9, 0]


def test_draws_follow_the_probabilities(engine):
    draws = [sample(engine, [0], 1, temperature=1, seed=seed)[0] for seed in range(600)]
    share = np.mean(np.array(draws) == 1)
    assert share == pytest.approx(1 / (1 + np.exp(-1)), abs=0.06)  # three standard deviations
    colder = [sample(engine, [0], 1, temperature=0.25, seed=seed)[0] for seed in range(200)]
    assert np.mean(np.array(colder) == 1) > 0.95


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_k": 3}, {0, 1, 2, 3}),  # the third and the fourth are equally likely
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.51}, {1, 2}),
        ({"top_p": 0.76}, {0, 1, 2}),
        ({"top_k": 2, "top_p": 0.66}, {1}),  # top_p is of what top_k left: 2/3 and 1/3
        ({"top_k": 2, "top_p": 0.67}, {1, 2}),
        ({"temperature": 0.5, "top_p": 0.72}, {1}),  # 16/22
        ({"temperature": 0.5, "top_p": 0.73}, {1, 2}),
    ],
)
def test_what_takes_part(options, kept):
    """Probabilities 1/8, 1/2, 1/4, 1/8."""
    engine = FakeRecipe(vocab=4, context=4)
    engine.table[:] = np.log([0.125, 0.5, 0.25, 0.125])
    options = {"temperature": 1.0} | options
    drawn = {sample(engine, [0], 1, seed=seed, **options)[0] for seed in range(80)}
    assert drawn == kept


def test_tokens_that_reach_top_p_exactly_are_enough():
    engine = FakeRecipe(vocab=4, context=4)
    engine.table[:] = 0.0
    drawn = {sample(engine, [0], 1, temperature=1, top_p=0.5, seed=seed)[0] for seed in range(80)}
    assert drawn == {0, 1}


def test_seed_decides(engine):
    runs = [sample(engine, [0], 30, temperature=1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1], {"temperature": -1}, "temperature must be a number, 0 or above; got -1"),
        ([1], {"temperature": float("nan")}, "temperature must be .* got nan"),
        ([1], {"temperature": float("inf")}, "temperature must be .* got inf"),
        ([1], {"top_k": -1}, "top_k must be a whole number, 0 or above; got -1"),
        ([1], {"top_k": 1.5}, "top_k must be .* got 1.5"),
        ([1], {"top_p": 0}, "top_p must be above 0 and at most 1; got 0"),
        ([1], {"top_p": 1.1}, "top_p must be .* got 1.1"),
        ([1], {"seed": -1}, "seed must be"),
        ([1], {"max_tokens": -1}, "max_tokens must be"),
    ],
)
def test_bad_requests_are_refused_at_once(engine, prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        generate(engine, prompt, **({"max_tokens": 1} | options))


def test_logits_that_are_not_finite(engine):
    engine.table[3] = np.nan
    for temperature in (0, 1):
        with pytest.raises(NonFiniteError, match="logits are not finite"):
            sample(engine, [3], 1, temperature=temperature)
