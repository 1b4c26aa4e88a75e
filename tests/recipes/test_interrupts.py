"""Ctrl-C in the middle of calls: each is made wholly or not at all; `tests.interrupts` has more."""

import interrupting
import pytest
from lora_bases import write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


@pytest.mark.parametrize("name", interrupting.RECIPES)
def test_a_call_that_is_interrupted_is_made_wholly_or_not_at_all(name, tmp_path):
    course = interrupting.Course(name, tmp_path, whole=False)
    assert course.interrupted(seed=1, times=1) >= 9  # of each of six recipes


@pytest.mark.slow
@pytest.mark.parametrize("name", interrupting.REALIZED)
def test_a_recipe_whose_realizing_is_interrupted_can_be_realized(name, base):
    interrupting.realized(name, base, seed=1, times=2)
