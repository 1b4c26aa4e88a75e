"""What a training step of an engine keeps, resets and draws."""

import numpy as np
import pytest

import toynn
from toynn.errors import ConfigError, LifecycleError, NonFiniteError, ShapeError

CONFIG = toynn.GPT2Config(vocab=17, d_model=8, n_heads=2, d_ff=16, n_layers=2, context=12)
HP = toynn.AdamW.for_lora()


def make(**options):
    recipe = toynn.recipes.GPT2()
    recipe.realize(CONFIG, toynn.RecipeOptions(**({"t_seq": 6, "t_batch": 2} | options)))
    return recipe


def batch(seed=0, size=12):
    return np.random.default_rng(seed).integers(0, 17, (2, size))


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_evaluate_changes_nothing():
    recipe, other = make(), make()
    for r in (recipe, other):
        r.accumulate(batch(1)[0], None, batch(1)[1])
    before = recipe.engine.gradients()
    recipe.evaluate(batch(2)[0], None, batch(2)[1])
    assert equal(before, recipe.engine.gradients())
    for r in (recipe, other):
        r.step(batch(3)[0], None, batch(3)[1], HP.hp_for_step(0), True)
    assert equal(recipe.engine.weights(), other.engine.weights())


def test_is_first_forgets_the_moments():
    recipe, fresh = make(), make()
    recipe.step(*_flat(batch(1)), HP.hp_for_step(0), True)
    recipe.engine.load_weights(fresh.engine.weights())
    for r in (recipe, fresh):
        r.step(*_flat(batch(2)), HP.hp_for_step(0), True)
    assert equal(recipe.engine.weights(), fresh.engine.weights())
    recipe.engine.load_weights(make().engine.weights())
    recipe.step(*_flat(batch(2)), HP.hp_for_step(0), False)
    assert not equal(recipe.engine.weights(), fresh.engine.weights())


def _flat(pair):
    return pair[0], None, pair[1]


def test_after_a_step_that_was_refused_the_next_is_as_if_it_had_not_been():
    recipe, fresh = make(), make()
    weights = fresh.engine.weights()
    broken = {name: values.copy() for name, values in weights.items()}
    broken["output_norm.weight"][0] = np.inf
    recipe.engine.load_weights(broken)
    with pytest.raises(NonFiniteError):
        recipe.step(*_flat(batch(1)), HP.hp_for_step(0), True)
    recipe.engine.load_weights(weights)
    for r in (recipe, fresh):
        r.step(*_flat(batch(2)), HP.hp_for_step(0), False)
    assert equal(recipe.engine.weights(), fresh.engine.weights())


def test_any_number_of_whole_sequences_is_a_batch():
    recipe, same = make(), make(t_batch=1)
    for r in (recipe, same):
        r.step(*_flat(batch(1, size=18)), HP.hp_for_step(0), True)
    assert equal(recipe.engine.weights(), same.engine.weights())
    with pytest.raises(ShapeError, match="whole sequences of 6"):
        recipe.step(*_flat(batch(1, size=7)), HP.hp_for_step(0), True)


def test_logits_of_one_sequence_and_of_several():
    engine = make().engine
    ids = batch(4)[0]
    one, two = engine.logits(ids, batch=1), engine.logits(ids, batch=2)
    np.testing.assert_array_equal(engine.logits(ids), two)  # as many as a training step's
    np.testing.assert_allclose(two[:6], one[:6], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(two[6:], engine.logits(ids[6:], batch=1), rtol=1e-5, atol=1e-7)
    assert not np.allclose(one[6:], two[6:])
    for wrong in (0, -1, 5):
        with pytest.raises(ShapeError, match="sequence"):
            engine.logits(ids, batch=wrong)


def test_initial_weights_have_the_spread_they_should():
    config = toynn.GPT2Config(vocab=64, d_model=64, n_heads=2, d_ff=256, n_layers=8, context=64)
    recipe = toynn.recipes.GPT2()
    recipe.realize(config, toynn.RecipeOptions(init_scale=2.0))
    weights = recipe.engine.weights()
    for name, std in (
        ("token_embd.weight", 0.02),
        ("blk.3.attn_qkv.weight", 0.04),
        ("blk.3.ffn_up.weight", 0.04),
        ("blk.3.attn_output.weight", 0.04 / 4),
        ("blk.3.ffn_down.weight", 0.04 / 4),
    ):
        assert weights[name].std() == pytest.approx(std, rel=0.05), name
    assert not np.array_equal(weights["blk.3.ffn_up.weight"], weights["blk.4.ffn_up.weight"])
    assert (weights["blk.0.attn_norm.weight"] == 1).all()
    assert not weights["blk.0.attn_norm.bias"].any()


def test_what_gpt2_is_not_is_refused():
    for options in ({"untied": True}, {"weight_dtype": "bf16"}, {"t_seq": 13}):
        with pytest.raises(ConfigError):
            make(**options)


def test_calls_before_realize():
    engine = toynn.GPT2SeqEngine()
    for call in (
        lambda: engine.step(*_flat(batch()), HP.hp_for_step(0), True),
        lambda: engine.logits(batch()[0]),
        engine.build_forward,
        engine.build_train_step,
    ):
        with pytest.raises(LifecycleError, match="before"):
            call()


def test_load_weights_replaces_all_or_none():
    engine = make().engine
    before = engine.weights()
    for wrong in (np.zeros(3), np.zeros(8, bool)):
        with pytest.raises(ShapeError, match=r"output_norm\.bias"):
            engine.load_weights({n: w + 1 for n, w in before.items()} | {"output_norm.bias": wrong})
        assert equal(before, engine.weights())


def test_recipes_name_the_call_that_is_missing():
    recipe, ids = toynn.recipes.GPT2(), batch()[0]
    for call in (
        lambda: recipe.step(ids, None, ids, HP.hp_for_step(0), True),
        lambda: recipe.accumulate(ids, None, ids),
        lambda: recipe.evaluate(ids, None, ids),
    ):
        with pytest.raises(LifecycleError, match=r"GPT2\.\w+ before realize\(\)"):
            call()
