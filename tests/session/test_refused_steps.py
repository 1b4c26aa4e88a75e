"""A step that is refused leaves a recipe as it was: the bits after it are those without it."""

import numpy as np
import pytest
import vits
from lora_bases import T, draw, write_base

import toynn
from toynn import RecipeOptions
from toynn.errors import ToynnError
from toynn.recipes import FromScratch, LoRA

HP = toynn.AdamW.for_lora()


def lora(base):
    recipe = LoRA()
    options = RecipeOptions(t_seq=T, seed=3, init_scale=0.5)
    recipe.realize(base, None, 2, options, targets="all-linear", dropout=0.4)
    return recipe


def scratch(base):
    recipe = FromScratch()
    recipe.realize_from(base, t_seq=T)
    return recipe


RECIPES = {"lora": lora, "scratch": scratch, "vit": lambda base: vits.make()}


def batches(name):
    """Inputs and labels, the same at each call."""
    if name == "vit":
        rng = np.random.default_rng(0)
        return [vits.pictures(rng, 1) for _ in range(4)]
    ids, labels = draw(4)
    return list(zip(ids.reshape(4, -1), labels.reshape(4, -1), strict=True))


def refusals(recipe, inputs, labels):
    """Calls with one thing wrong in each."""
    hp, wrong = HP.hp_for_step(0), np.asarray(labels).copy()
    wrong[0] = 10**6
    for bad in (hp[:6], np.full(7, np.nan), "hp"):
        yield lambda bad=bad: recipe.step(inputs, None, labels, bad, True)
    for bad in (wrong, np.full_like(wrong, -100), wrong[:0]):
        yield lambda bad=bad: recipe.step(inputs, None, bad, hp, True)
        yield lambda bad=bad: recipe.accumulate(inputs, None, bad)
    yield lambda: recipe.step(inputs, [-1], labels, hp, True)
    yield lambda: recipe.step(inputs[:0], None, labels, hp, True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_refused_step_has_done_nothing(name, tmp_path):
    base = tmp_path / "base.gguf"
    write_base(base)
    plain, tried = (RECIPES[name](base) for _ in range(2))
    for k, (inputs, labels) in enumerate(batches(name)):
        losses = []
        for recipe in (plain, tried):
            if k == 1:
                recipe.accumulate(inputs, None, labels)
            for call in refusals(recipe, inputs, labels) if recipe is tried else ():
                with pytest.raises(ToynnError):
                    call()
            losses.append(recipe.step(inputs, None, labels, HP.hp_for_step(k), k == 0))
            assert recipe.step_index == k + 1
        assert losses[0] == losses[1]
    for mine, theirs in zip(
        *(recipe.engine.weights().values() for recipe in (plain, tried)), strict=True
    ):
        assert mine.tobytes() == theirs.tobytes()
