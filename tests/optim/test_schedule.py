"""Schedule: exact rates at the corners, and every guard."""

import math

import pytest

from toynn.errors import ConfigError
from toynn.optim.schedule import SCHEDULES, Schedule


def rates(name, at=(0, 4, 5, 55, 85, 95, 104, 105, 1000), **more):
    arguments = {"lr_max": 1e-3, "steps": 105, "warmup_steps": 5, "min_lr_ratio": 0.01} | more
    schedule = Schedule(name, **arguments)
    return [schedule(step) for step in at]


CORNERS = {
    "cosine": [2e-4, 1e-3, 1e-3, 5.05e-4, 1.0453658778e-4, 3.4227024434e-5, 1.0244252619e-5, 1e-5],
    "linear": [2e-4, 1e-3, 1e-3, 5.05e-4, 2.08e-4, 1.09e-4, 1.99e-5, 1e-5],
    "wsd": [2e-4, 1e-3, 1e-3, 1e-3, 1e-3, 5.05e-4, 5.95e-5, 1e-5],
    "constant": [2e-4, *[1e-3] * 7],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates(name):
    expected = [*CORNERS[name], CORNERS[name][-1]]  # past the end it stays
    assert rates(name) == pytest.approx(expected, rel=1e-7)


def test_cosine_is_the_seeds_formula():
    n, high, low, w = 20, 3e-3, 1e-4, 10
    schedule = Schedule("cosine", high, n, w, low / high)
    for step in range(n):
        if step < w:
            expected = high * (step + 1) / w
        else:
            expected = low + 0.5 * (high - low) * (1 + math.cos(math.pi * (step - w) / (n - w)))
        assert schedule(step) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup_steps", [0, 1, 7])
def test_rates_rise_then_never_rise_again(name, warmup_steps):
    schedule = Schedule(name, 1.0, 50, warmup_steps)
    rate = [schedule(step) for step in range(60)]
    assert rate[:warmup_steps] == sorted(rate[:warmup_steps])
    assert rate[warmup_steps:] == sorted(rate[warmup_steps:], reverse=True)
    assert rate[warmup_steps] == 1
    assert min(rate[warmup_steps:]) == pytest.approx(1 if name == "constant" else 0.1)


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("steps", [3, 5])
def test_warm_up_that_takes_all_steps_ends_at_the_minimum(name, steps):
    assert rates(name, (2, 5), steps=steps) == pytest.approx([6e-4, 1e-5])


def test_default_minimum_is_a_tenth():
    assert Schedule("linear", 1e-3, 10)(10) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "cos"}, "name must be one of cosine, linear, wsd, constant; got 'cos'"),
        ({"lr_max": -1e-3}, "lr_max must be a number above 0 and at most 10000; got -0.001"),
        ({"lr_max": math.inf}, "lr_max must be a number above 0 and at most 10000; got inf"),
        ({"lr_max": math.nan}, "lr_max must be a number above 0 and at most 10000; got nan"),
        ({"steps": 0}, "steps must be a whole number from 1 to 2147483647; got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number from 0 to 2147483647; got -1"),
        (
            {"min_lr_ratio": 1.1},
            "min_lr_ratio must be a number of at least 0 and at most 1; got 1.1",
        ),
        (
            {"min_lr_ratio": math.nan},
            "min_lr_ratio must be a number of at least 0 and at most 1; got nan",
        ),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ConfigError, match=f"^Schedule: {message}$"):
        Schedule(**{"name": "cosine", "lr_max": 1e-3, "steps": 10} | change)


def test_negative_step_is_refused():
    with pytest.raises(ConfigError, match="steps count from 0; got -1"):
        Schedule("cosine", 1e-3, 10)(-1)
