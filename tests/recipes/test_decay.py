"""`decay`: which weights AdamW makes smaller; PyTorch's, with groups of weights, is the judge."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, of the parity group, is not installed")

import torch
from lora_bases import config as config_of
from lora_bases import write_base
from vits import config as vit_config

from toynn import AdamW, RecipeOptions
from toynn.errors import ConfigError
from toynn.recipes import GPT2, FromScratch, LoRA, VitTiny

T, B, VOCAB = 8, 2, 11


def gpt2(decay):
    recipe = GPT2()
    recipe.realize(config_of("gpt2", vocab=VOCAB, context=T), RecipeOptions(T, B, decay=decay))
    return recipe, texts


def from_scratch(decay):
    recipe = FromScratch()
    options = RecipeOptions(T, B, decay=decay, qkv_bias=True, checkpointing=True)
    recipe.realize(config_of("llama", vocab=VOCAB, context=T), options)
    return recipe, texts


def vit(decay):
    recipe = VitTiny()
    recipe.realize(vit_config(), RecipeOptions(t_batch=B, decay=decay))
    return recipe, pictures


def texts(recipe, rng, dense):
    labels = rng.integers(0, VOCAB, B * T)
    return (
        rng.integers(0, VOCAB, B * T),
        None,
        np.eye(VOCAB, dtype=np.float32)[labels] if dense else labels,
    )


def pictures(recipe, rng, dense):
    cfg = recipe.engine.config
    labels = rng.integers(0, cfg.classes, B)
    image = rng.random((B, cfg.image, cfg.image, cfg.channels), np.float32)
    return image, None, np.eye(cfg.classes, dtype=np.float32)[labels] if dense else labels


def shaken(recipe, rng):
    """Load weights of which none is zero, so that decay would show."""
    weights = recipe.engine.weights()
    recipe.engine.load_weights(
        {name: w + rng.normal(0, 0.5, w.shape).astype(np.float32) for name, w in weights.items()}
    )


def in_torch(recipe, decay, adamw):
    """The trained weights in float64, and PyTorch's optimizer for them."""
    weights = {
        name: torch.tensor(recipe.engine.session.download(w), dtype=torch.float64)
        for name, w in recipe.engine.parameters.items()
    }
    matrices = [w for w in weights.values() if w.ndim > 1]
    vectors = [w for w in weights.values() if w.ndim == 1]
    of_vectors = 0.0 if decay == "matrices" else adamw.weight_decay
    groups = [
        {"params": matrices, "weight_decay": adamw.weight_decay},
        {"params": vectors, "weight_decay": of_vectors},
    ]
    assert matrices and vectors
    betas = adamw.beta1, adamw.beta2
    return weights, torch.optim.AdamW(groups, lr=adamw.lr, betas=betas, eps=adamw.eps)


@pytest.mark.parametrize("decay", ["all", "matrices"])
@pytest.mark.parametrize("make", [gpt2, from_scratch, vit])
def test_against_groups_of_pytorch(make, decay):
    """Labels of both forms, which have tapes of their own, take turns."""
    rng = np.random.default_rng(0)
    recipe, batch = make(decay)
    shaken(recipe, rng)
    adamw = AdamW.for_lora()
    adamw.lr, adamw.weight_decay = 0.01, 0.5
    weights, theirs = in_torch(recipe, decay, adamw)
    for step in range(4):
        given = batch(recipe, rng, dense=step % 2 == 1)
        recipe.step(*given, adamw.hp_for_step(step), step == 0)
        for name, w in recipe.engine.parameters.items():
            gradient = recipe.engine.session.download(recipe.engine.session.grad(w))
            weights[name].grad = torch.tensor(gradient, dtype=torch.float64)
        theirs.step()
    for name, w in recipe.engine.parameters.items():
        ours = recipe.engine.session.download(w)
        np.testing.assert_allclose(ours, weights[name].numpy(), rtol=0, atol=2e-6, err_msg=name)


def test_adapters_are_matrices_all(tmp_path):
    """Of adapters both are the same tape: one row of AdamW, as ever."""
    base = write_base(tmp_path / "base.gguf", vocab=VOCAB, context=T)
    for decay in ("all", "matrices"):
        recipe = LoRA()
        recipe.realize(base, None, 2, RecipeOptions(T, B, decay=decay))
        assert not recipe.engine._step.hp_more


def test_another_decay_is_refused():
    with pytest.raises(ConfigError, match="decay must be one of all, matrices; got 'some'"):
        RecipeOptions(decay="some")
