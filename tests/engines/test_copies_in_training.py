"""A model whose weights are kept packed while they are trained: bits are those without."""

import numpy as np

import toynn
from toynn.backends.cpu import copies

T, B, V = 32, 2, 61
CONFIG = toynn.GPT2Config(vocab=V, d_model=192, n_heads=2, d_ff=256, n_layers=1, context=T)
HP = toynn.AdamW.for_lora()


def losses_and_weights():
    """Of steps of two micro-batches, evaluations, and weights loaded in between."""
    recipe = toynn.recipes.GPT2()
    options = toynn.RecipeOptions(t_seq=T, t_batch=B, seed=3)
    recipe.realize(CONFIG, options)
    first, rng, losses = recipe.engine.weights(), np.random.default_rng(1), []
    for k in range(5):
        ids, labels = rng.integers(0, V, (2, B * T))
        recipe.accumulate(labels, None, ids)
        losses.append(recipe.step(ids, None, labels, HP.hp_for_step(k), k == 0))
        losses.append(recipe.evaluate(labels, None, ids))
        if k == 2:
            recipe.engine.load_weights(first)
            losses.append(recipe.evaluate(labels, None, ids))
    return np.array(losses), recipe.engine.weights(), recipe.engine.session.memory().packed


def test_a_model_trains_as_without(monkeypatch):
    got = []
    for keeps in (False, True):
        monkeypatch.setattr(copies, "kept_while_trained", lambda *_, keeps=keeps: keeps)
        got.append(losses_and_weights())
    (plain, weights, none), (packed, kept, some) = got
    assert none == 0 < some
    assert np.array_equal(plain, packed)
    assert all(np.array_equal(weights[name], kept[name]) for name in weights)
