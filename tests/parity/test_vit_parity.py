"""Vision transformers against an independent float64 model: logits, loss, gradients, training."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

import torch
import torch_gpt2
import torch_vit as reference
from test_gpt2_parity import LOSS, assert_gradients_agree, hp
from test_llama_parity import assert_logits_agree
from vits import VARIANTS, config, make, pictures, shake

from toynn import RecipeOptions, ViTConfig
from toynn.models.timm import resampled
from toynn.recipes import VitTiny

pytestmark = pytest.mark.parity


def draw(rng, batch, form):
    """Pixels and labels of one batch."""
    pixels, labels = pictures(rng, batch)
    if form == "dense":
        labels = rng.random((batch, config().classes)) ** 4
        labels[0] /= labels[0].sum()  # the others do not sum to 1
    return pixels, labels


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("weights", ["initial", "random"])
@pytest.mark.parametrize("form", ["integer", "dense"])
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_loss_and_gradients(batch, form, weights, variant):
    rng = np.random.default_rng(1)
    recipe = make(variant, batch)
    if weights == "random":
        shake(recipe.engine, rng)
    model = reference.Model(recipe.engine.weights(), recipe.engine.config)
    pixels, labels = draw(rng, batch, form)
    assert_logits_agree(recipe.engine.logits(pixels), model.logits(pixels, batch).detach().numpy())
    expected = model.backward(pixels, labels, batch)
    assert recipe.evaluate(pixels, [0], labels) == pytest.approx(expected, rel=LOSS)
    loss = recipe.step(pixels, [0], labels, hp("lora", 0), True)
    assert loss == pytest.approx(expected, rel=LOSS)
    assert_gradients_agree(recipe.engine.gradients(), model.gradients())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("convention", ["lora", "from_scratch"])
@pytest.mark.parametrize(("batch", "form"), [(1, "integer"), (3, "integer"), (3, "dense")])
def test_ten_steps(batch, form, convention, variant):
    rng = np.random.default_rng(2)
    recipe = make(variant, batch)
    shake(recipe.engine, rng)
    model = reference.Model(recipe.engine.weights(), recipe.engine.config)
    got, expected = [], []
    for step in range(10):
        pixels, labels = draw(rng, batch, form)
        got.append(recipe.step(pixels, [0], labels, hp(convention, step), step == 0))
        row = torch_gpt2.hp_row(convention, step, 3e-3, 0.1)
        expected.append(model.step(pixels, labels, row, batch))
    np.testing.assert_allclose(got, expected, rtol=10 * LOSS)
    trained = recipe.engine.weights()
    for name, w in model.weights.items():
        # Where a gradient is nearly zero, AdamW's first step goes by the sign of its rounding.
        scale = float(w.detach().abs().max())
        difference = np.abs(trained[name] - w.detach().numpy())
        assert np.median(difference) < 1e-5 * scale, name


def test_the_head_reads_the_token_that_it_is_told():
    rng = np.random.default_rng(3)
    recipe = make(batch=3)
    model = reference.Model(shake(recipe.engine, rng), recipe.engine.config)
    pixels, labels = pictures(rng, 3)
    for tokens in ([4, 4, 4], [9, 0, 2]):
        expected = model.logits(pixels, 3, tokens)
        told = tokens if len(set(tokens)) > 1 else tokens[:1]
        assert_logits_agree(recipe.engine.logits(pixels, told), expected.detach().numpy())
        loss = torch_gpt2.cross_entropy(expected, labels).item()
        assert recipe.evaluate(pixels, told, labels) == pytest.approx(loss, rel=LOSS)


def test_a_size_at_which_kernels_block_and_use_threads():
    rng = np.random.default_rng(4)
    cfg = ViTConfig(image=48, patch=4, d_model=96, n_heads=3, d_ff=256, n_layers=2, classes=37)
    recipe = VitTiny()
    recipe.realize(cfg, RecipeOptions(t_batch=2, seed=6))
    model = reference.Model(recipe.engine.weights(), cfg)
    pixels, labels = pictures(rng, 2, cfg)  # 145 tokens each
    for step in range(3):
        row = torch_gpt2.hp_row("lora", step, 3e-3, 0.1)
        loss = recipe.step(pixels, [0], labels, hp("lora", step), step == 0)
        assert loss == pytest.approx(model.step(pixels, labels, row, 2), rel=LOSS)
        if step == 0:
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())


@pytest.mark.parametrize(("old", "new"), [(7, 7), (7, 14), (14, 7), (7, 10), (10, 3), (1, 4)])
def test_positions_are_resized_as_torch_resizes_pictures(old, new):
    table = np.random.default_rng(5).standard_normal((1, 1 + old * old, 6)).astype(np.float32)
    grid = torch.from_numpy(table[:, 1:]).double().reshape(1, old, old, 6).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(grid, (new, new), mode="bicubic", antialias=True)
    expected = resized.permute(0, 2, 3, 1).reshape(1, new * new, 6).numpy()
    got = resampled(table, new)
    np.testing.assert_allclose(got[:, 1:], expected, atol=1e-6)
    assert np.array_equal(got[:, :1], table[:, :1])
