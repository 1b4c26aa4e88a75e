"""Vision transformers: what they take, draw, refuse and keep; their numbers are tests/parity's."""

from math import prod

import numpy as np
import pytest
from vits import SIZES, VARIANTS, config, cut, make, pictures, shake

import toynn
from toynn import ConfigError, LabelError, LifecycleError, RecipeOptions, ShapeError, ViTConfig
from toynn.engines import ViTEngine
from toynn.errors import NonFiniteError
from toynn.recipes import VitTiny
from toynn.testing import gradcheck

HP = toynn.AdamW.for_lora()
RNG = np.random.default_rng


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# -- Shape and weights -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch": 5}, "patch must divide image; got patch 5, image 12"),
        ({"patch": 24}, "patch must divide image"),
        ({"n_heads": 5}, "n_heads must divide d_model; got 5 and 24"),
        ({"channels": 0}, "channels must be a whole number >= 1; got 0"),
        ({"classes": 2.0}, "classes must be a whole number >= 1; got 2.0"),
        ({"norm": "batchnorm"}, "norm must be layernorm or rmsnorm; got 'batchnorm'"),
        ({"act": "relu"}, "act must be gelu or silu; got 'relu'"),
        ({"bias": 1}, "bias must be True or False; got 1"),
        ({"norm_eps": 0.0}, "norm_eps must be a finite float above 0; got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_the_known_shapes_have_the_known_numbers_of_parameters():
    def parameters(**changes):
        return sum(prod(shape) for shape in ViTConfig(**changes).shapes().values())

    assert parameters(classes=1000) == 5_717_416  # timm's vit_tiny_patch16_224
    assert parameters(**VARIANTS["upstream"]) == 5_500_608


def test_weights_have_timms_names_and_shapes():
    weights = make().engine.weights()
    assert weights["cls_token"].shape == (1, 1, 24)
    assert weights["pos_embed"].shape == (1, 10, 24)
    assert weights["patch_embed.proj.weight"].shape == (24, 2, 4, 4)
    assert weights["blocks.1.attn.qkv.weight"].shape == (72, 24)
    assert weights["blocks.1.mlp.fc2.bias"].shape == (24,)
    assert {name.split(".", 2)[-1] for name in weights if name.startswith("blocks.0.")} == {
        f"{layer}.{part}"
        for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for part in ("weight", "bias")
    }
    assert not [name for name in make("upstream").engine.weights() if name.endswith("bias")]


def test_initial_weights_are_timms_scaled():
    recipe = VitTiny()
    sizes = {"image": 64, "d_model": 96, "d_ff": 192, "classes": 100}
    recipe.realize(config(**sizes), RecipeOptions(init_scale=2.0))
    weights = recipe.engine.weights()
    for name, std in (
        ("patch_embed.proj.weight", 0.02),
        ("pos_embed", 0.02),
        ("head.weight", 0.02),
        ("blocks.1.attn.qkv.weight", 0.04),
        ("blocks.1.mlp.fc2.weight", 0.04),
    ):
        assert weights[name].std() == pytest.approx(std, rel=0.05), name
    assert (weights["blocks.0.norm2.weight"] == 1).all()
    assert not weights["cls_token"].any() and not weights["blocks.0.mlp.fc1.bias"].any()
    assert not equal(make(seed=1).engine.weights(), make(seed=2).engine.weights())
    assert equal(make(seed=1).engine.weights(), make(seed=1).engine.weights())


def test_weights_go_out_and_in():
    recipe, other = make(), make(seed=9)
    weights = shake(recipe.engine, RNG(0))
    assert equal(recipe.engine.weights(), weights)
    other.engine.load_weights(weights)
    pixels, _ = pictures(RNG(1), 2)
    assert np.array_equal(recipe.engine.logits(pixels), other.engine.logits(pixels))
    with pytest.raises(ShapeError, match=r"patch_embed.proj.weight: expected \(24, 2, 4, 4\)"):
        other.engine.load_weights(weights | {"patch_embed.proj.weight": np.zeros((24, 32))})
    with pytest.raises(ConfigError, match=r"missing none, unknown \['blk.0'\]"):
        other.engine.load_weights(weights | {"blk.0": np.zeros(1)})


# -- Pictures, tokens, labels ------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_by_finite_differences(dense, variant):
    recipe = make(variant, batch=2)
    shake(recipe.engine, RNG(2))
    pixels, labels = pictures(RNG(3), 2)
    labels = np.eye(5)[labels] * [[0.7], [1.5]] if dense else labels
    recipe.step(pixels, [3, 0], labels, [0, 0.9, 0.95, 1, 0, 1, 1], True)
    step = recipe.engine._step_for(2, dense)
    s = recipe.engine.session
    s.tape, main = step.tape, s.tape
    assert gradcheck(s)
    s.tape = main


def test_pixels_and_patches_of_one_picture_or_several():
    engine = make(batch=2).engine
    shake(engine, RNG(4))
    pixels, _ = pictures(RNG(5), 3)
    patches = cut(pixels, 4)
    assert patches.shape == (3, 9, 32)
    expected = engine.logits(pixels)
    assert np.array_equal(engine.logits(patches), expected)
    assert np.array_equal(engine.logits(pixels.astype(np.float64)), expected)
    np.testing.assert_allclose(engine.logits(pixels[1]), expected[1:2], rtol=1e-4, atol=1e-5)
    assert np.array_equal(engine.logits(patches[1]), engine.logits(pixels[1:2]))


def test_bytes_are_normalised():
    engine = make().engine
    shake(engine, RNG(6))
    pixels = RNG(7).integers(0, 256, (2, 12, 12, 2)).astype(np.uint8)
    exact = ((pixels / 255 - 0.5) / 0.5).astype(np.float32)
    assert np.array_equal(engine.logits(pixels), engine.logits(exact))
    assert np.array_equal(engine.logits(cut(pixels, 4)), engine.logits(exact))


@pytest.mark.parametrize(
    "labels", [3, [3], np.int64(3), np.eye(5)[3], np.eye(5)[[3]], np.eye(5, dtype=int)[3]]
)
def test_a_label_of_one_picture(labels):
    recipe = make()
    pixels, _ = pictures(RNG(8), 1)
    expected = recipe.evaluate(pixels, None, np.array([3]))
    assert recipe.evaluate(pixels[0], [0], labels) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("labels", [[3, -100, 1], np.eye(5)[[3, 2, 1]] * [[1], [0], [1]]])
def test_pictures_that_do_not_count(labels):
    recipe = make(batch=3)
    pixels, _ = pictures(RNG(9), 3)
    expected = recipe.evaluate(pixels[::2], None, [3, 1])
    assert recipe.evaluate(pixels, None, labels) == pytest.approx(expected, rel=1e-6)


PIXELS = np.zeros((2, 12, 12, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((PIXELS.transpose(0, 3, 1, 2), [0], [1, 2]), ShapeError, r"pixels \(12, 12, 2\) or patch"),
        ((PIXELS[:, :8], [0], [1, 2]), ShapeError, r"got \(2, 8, 12, 2\)"),
        ((PIXELS[None], [0], [1, 2]), ShapeError, r"got \(1, 2, 12, 12, 2\)"),
        ((PIXELS[:0], [0], []), ShapeError, r"got \(0, 12, 12, 2\)"),
        ((PIXELS.astype(int), [0], [1, 2]), ShapeError, "uint8 .* or floats; got int64"),
        ((PIXELS, [10], [1, 2]), LabelError, r"a token is 0 .* or 1\.\.9 .*got \[10\]"),
        ((PIXELS, [-1], [1, 2]), LabelError, r"got \[-1\]"),
        ((PIXELS, [0, 1, 2], [1, 2]), ShapeError, "one of each of 2 pictures; got int64"),
        ((PIXELS, [0.0], [1, 2]), ShapeError, "one whole number.*float64"),
        ((PIXELS, [0], [1]), LabelError, r"2 picture.s. need whole numbers \(2,\) or dense"),
        ((PIXELS, [0], [1.0, 2.0]), LabelError, r"got float64 \(2,\)"),
        ((PIXELS, [0], np.zeros((2, 4))), LabelError, r"dense labels \(2, 5\); got"),
        ((PIXELS, [0], [1, 5]), LabelError, r"row 1 is 5; must be 0\.\.4"),
        ((PIXELS, [0], [-100, -100]), LabelError, "all 2 rows are ignored"),
        ((PIXELS, [0], np.zeros((2, 5))), LabelError, "all 2 rows are ignored"),
    ],
)
def test_wrong_input_is_refused(arguments, error, message):
    recipe = make(batch=2)
    before = recipe.engine.weights()
    with pytest.raises(error, match=message):
        recipe.step(*arguments, HP.hp_for_step(0), True)
    assert recipe.step_index == 0 and equal(before, recipe.engine.weights())


# -- Steps -------------------------------------------------------------------------------------


def test_batches_of_any_size_mixed():
    mixed = make(batch=2)
    single = {batch: make(batch=batch) for batch in (1, 2, 3)}
    start = mixed.engine.weights()
    sizes = []
    for k, batch in enumerate((3, 1, 2, 1, 3)):
        for recipe in (mixed, single[batch]):
            recipe.engine.load_weights(start)
            recipe.step(*_batch(k, batch), HP.hp_for_step(0), True)
        assert equal(mixed.engine.weights(), single[batch].engine.weights())
        sizes.append(mixed.engine.session.memory().activations)
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3] == sizes[4], "a size is planned for once"


def _batch(seed, batch):
    pixels, labels = pictures(RNG(seed), batch)
    return pixels, [0], labels


def test_micro_batches_count_by_their_pictures():
    whole, parts = make(batch=3), make()
    pixels, tokens, labels = _batch(1, 3)
    whole.step(pixels, tokens, labels, HP.hp_for_step(0), True)
    parts.accumulate(pixels[:1], tokens, labels[:1])
    parts.step(pixels[1:], tokens, labels[1:], HP.hp_for_step(0), True)
    for name, expected in whole.engine.gradients().items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(parts.engine.gradients()[name], expected, atol=1e-5 * scale)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_a_batch_by_heart(variant):
    recipe = make(variant, batch=4, init_scale=4.0)
    pixels, tokens, _ = _batch(2, 4)
    labels, adamw = [3, 0, 4, 3], toynn.AdamW.for_lora()
    adamw.lr = 5e-3
    for k in range(60):
        recipe.step(pixels, tokens, labels, adamw.hp_for_step(k), k == 0)
    assert recipe.evaluate(pixels, tokens, labels) < 0.1
    assert recipe.engine.predict(pixels).tolist() == labels
    assert recipe.step_index == 60


@pytest.mark.parametrize("dense", [False, True])
def test_threads_change_no_bit(dense):
    cfg = config(image=48, d_model=96, d_ff=256)  # 145 tokens: beyond one block of attention
    trained = []
    for n_threads in (1, 2, 3):
        engine = ViTEngine(n_threads=n_threads)
        engine.realize_for_random_init(cfg, RecipeOptions(t_batch=2))
        engine.build_training_step()
        pixels, labels = pictures(RNG(3), 2, cfg)
        labels = np.eye(5)[labels] if dense else labels
        for k in range(2):
            engine.step(pixels, [0], labels, HP.hp_for_step(k), k == 0)
        trained.append(engine.weights())
    assert equal(trained[0], trained[1]) and equal(trained[0], trained[2])


def test_many_pictures_at_once():
    engine = make().engine
    shake(engine, RNG(4))
    pixels, _ = pictures(RNG(5), 131)
    logits = engine.logits(pixels, [2] * 131)
    assert logits.shape == (131, 5)
    np.testing.assert_allclose(logits[130], engine.logits(pixels[130], [2])[0], rtol=1e-4)
    assert not np.allclose(logits, engine.logits(pixels))


def test_probabilities_and_predictions():
    engine = make().engine
    shake(engine, RNG(6))
    pixels, _ = pictures(RNG(7), 6)
    logits, odds = engine.logits(pixels).astype(float), engine.probabilities(pixels)
    np.testing.assert_allclose(odds, np.exp(logits) / np.exp(logits).sum(1)[:, None], rtol=1e-5)
    assert odds.dtype == np.float32
    assert engine.predict(pixels).tolist() == odds.argmax(axis=1).tolist()
    assert engine.predict(pixels[0]).shape == (1,)


def test_bad_weights_or_pixels_are_no_class():
    engine = make().engine
    pixels, _ = pictures(RNG(7), 5)
    pixels[3, 0, 0] = np.inf
    for call in (engine.predict, engine.probabilities):
        with pytest.raises(NonFiniteError, match=r"1 of 5 pictures, the first of them number 3,"):
            call(pixels)
    engine.load_weights(engine.weights() | {"head.bias": [0, 1, np.nan, 2, 3]})
    with pytest.raises(NonFiniteError, match=r"predict: the logits of 2 of 2 pictures"):
        engine.predict(pixels[:2])


def test_the_last_block_computes_only_what_the_head_reads():
    tape = make(batch=2).engine.session.tape
    rows = [n.sizes["M"] for n in tape.nodes if n.op.kernel == "matmul.forward"]
    assert rows == [18, 20, 20, 20, 20, 20, 2, 2, 2, 2]  # patches, then 10 tokens a picture


# -- Life cycle --------------------------------------------------------------------------------


def test_memory_is_known_before_it_is_taken():
    engine = ViTEngine()
    engine.declare(config(), RecipeOptions(t_batch=3))
    engine.build_forward()
    engine._record_update(engine._step)
    promised, recipe = engine.session.memory(), make(batch=3)
    assert recipe.engine.session.memory() == promised
    parameters = sum(prod(shape) for shape in config().shapes().values())
    sizes = (promised.weights, promised.gradients, promised.moments)
    # Each tensor begins at a multiple of 64 bytes.
    assert sizes == pytest.approx((4 * parameters, 4 * parameters, 8 * parameters), rel=0.02)


def test_calls_in_the_wrong_order():
    recipe = VitTiny()
    pixels, tokens, labels = _batch(0, 1)
    for call in (
        lambda: recipe.step(pixels, tokens, labels, HP.hp_for_step(0), True),
        lambda: recipe.accumulate(pixels, tokens, labels),
        lambda: recipe.evaluate(pixels, tokens, labels),
        lambda: recipe.engine.logits(pixels),
        lambda: recipe.engine.weights(),
        lambda: recipe.save("nowhere.safetensors"),
    ):
        with pytest.raises(LifecycleError, match=" before "):
            call()
    recipe.realize(config(), RecipeOptions())
    with pytest.raises(LifecycleError, match="once only"):
        recipe.realize(config(), RecipeOptions())


def test_options_that_a_vit_has_not():
    with pytest.raises(ConfigError, match="weight_dtype must be f32; got 'bf16'"):
        make(weight_dtype="bf16")


def test_the_recipe_has_the_handles_of_its_step():
    recipe = make(batch=2)
    engine = recipe.engine
    assert (engine.t_image.shape, engine.t_cls_idx.shape) == ((18, 32), (2,))
    assert (recipe.t_labels.shape, recipe.t_hp.shape, recipe.t_loss.shape) == ((2,), (7,), ())
    assert list(engine.moments) == list(engine.parameters) == list(config().shapes())
    assert engine.config == ViTConfig(**SIZES) and engine.backend == "cpu"
