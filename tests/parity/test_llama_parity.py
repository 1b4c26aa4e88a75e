"""The Llama family against an independent float64 model: logits, loss, gradients, training."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

import torch
import torch_gpt2
import torch_llama as reference
from llamas import KINDS, SIZES, T, draw, make, shake
from test_gpt2_parity import LOSS, assert_gradients_agree, hp

from toynn import LlamaConfig, RecipeOptions
from toynn.recipes import FromScratch

pytestmark = pytest.mark.parity

DTYPES = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}


def model_of(recipe):
    engine = recipe.engine
    frozen = engine.tensors.keys() - engine.parameters.keys()
    dtype = DTYPES[engine.options.weight_dtype]
    return reference.Model(engine.weights(), engine.config, frozen, dtype)


def assert_logits_agree(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


#: What torch_llama computes; test_transformers.py has the others.
OTHER = ("moe", "linear", "yarn", "qwen35", "qwen3next")
OWN = [
    kind
    for kind in KINDS
    if kind.startswith(("llama", "qwen")) and not any(part in kind for part in OTHER)
]


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("weights", ["initial", "random"])
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_loss_and_gradients(batch, weights, kind):
    rng = np.random.default_rng(1)
    recipe = make(kind, batch)
    if weights == "random":
        shake(recipe.engine, rng)
    model = model_of(recipe)
    ids, labels = draw(rng, batch)
    assert_logits_agree(recipe.engine.logits(ids), model.logits(ids, batch).detach().numpy())
    expected = model.backward(ids, labels, batch)
    assert recipe.evaluate(ids, None, labels) == pytest.approx(expected, rel=LOSS)
    loss = recipe.step(ids, None, labels, hp("from_scratch", 0), True)
    assert loss == pytest.approx(expected, rel=LOSS)
    assert_gradients_agree(recipe.engine.gradients(), model.gradients())


@pytest.mark.parametrize("kind", OWN)
def test_ten_losses(kind):
    rng = np.random.default_rng(2)
    recipe = make(kind, batch=2)
    model = model_of(recipe)
    got, expected = [], []
    for step in range(10):
        ids, labels = draw(rng, 2)
        got.append(recipe.step(ids, None, labels, hp("from_scratch", step), step == 0))
        row = torch_gpt2.hp_row("from_scratch", step, 3e-3, 0.1)
        expected.append(model.step(ids, labels, row, 2))
    np.testing.assert_allclose(got, expected, rtol=LOSS)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("kind", ["llama", "llama-lens", "qwen2"])
def test_rounded_weights(kind, dtype, monkeypatch):
    """The products see rounded weights, the update their originals.

    In highest: the tiles of AMX round what small products multiply, too.
    """
    known, highest = RecipeOptions.of_session, {"matmul_precision": "highest"}
    monkeypatch.setattr(RecipeOptions, "of_session", lambda opts: known(opts) | highest)
    rng = np.random.default_rng(3)
    recipe = make(kind, batch=2, weight_dtype=dtype)
    shake(recipe.engine, rng)
    model = model_of(recipe)
    ids, labels = draw(rng, 2)
    assert_logits_agree(recipe.engine.logits(ids), model.logits(ids, 2).detach().numpy())
    for step in range(3):
        row = torch_gpt2.hp_row("from_scratch", step, 3e-3, 0.1)
        loss = recipe.step(ids, None, labels, hp("from_scratch", step), step == 0)
        # An original that differs by rounding may now and then be rounded to the other side.
        rel = LOSS if step == 0 else 1e-3
        assert loss == pytest.approx(model.step(ids, labels, row, 2), rel=rel)
        if step == 0:
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())
    trained = recipe.engine.weights()
    for name, w in model.weights.items():
        scale = float(w.detach().abs().max())
        np.testing.assert_allclose(trained[name], w.detach().numpy(), rtol=0, atol=1e-2 * scale)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_given_positions_are_used(kind):
    recipe = make(kind)
    shake(recipe.engine, np.random.default_rng(4))
    model = model_of(recipe)
    ids, labels = draw(np.random.default_rng(5))
    positions = np.arange(T, dtype=np.int32)[::-1] ** 2  # distances matter, not where they begin
    logits = model.logits(ids, 1, positions)
    expected = torch_gpt2.cross_entropy(logits, labels).item()
    assert recipe.evaluate(ids, positions, labels) == pytest.approx(expected, rel=LOSS)
    assert recipe.evaluate(ids, positions + 1000, labels) == pytest.approx(expected, rel=LOSS)
    assert recipe.evaluate(ids, None, labels) != pytest.approx(expected, rel=1e-3)


def test_a_size_at_which_kernels_block_and_use_threads():
    sizes = SIZES | {"vocab": 627, "d_model": 96, "d_ff": 256, "context": 130}
    recipe = FromScratch()
    recipe.realize(LlamaConfig(**sizes), RecipeOptions(t_batch=2, seed=6))
    model = model_of(recipe)
    ids, labels = np.random.default_rng(10).integers(0, sizes["vocab"], (2, 260)).astype(np.int32)
    for step in range(3):
        row = hp("from_scratch", step)
        loss = recipe.step(ids, None, labels, row, step == 0)
        assert loss == pytest.approx(model.step(ids, labels, row.astype(float), 2), rel=LOSS)
        if step == 0:
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())
