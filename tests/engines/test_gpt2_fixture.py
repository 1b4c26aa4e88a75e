"""GPT-2 against numbers of the float64 model of tests/parity, for where PyTorch is absent."""

from pathlib import Path

import numpy as np
import pytest

from toynn import GPT2Config, RecipeOptions
from toynn.recipes import GPT2

FIXTURE = Path(__file__).parents[1] / "fixtures" / "gpt2_parity.npz"
FORMS = ["integer", "ignored", "dense"]


@pytest.fixture(scope="module")
def arrays():
    with np.load(FIXTURE) as file:
        return dict(file)


def below(arrays, prefix):
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def make(arrays):
    recipe = GPT2()
    sizes = {name: int(size) for name, size in below(arrays, "sizes/").items()}
    recipe.realize(GPT2Config(**sizes), RecipeOptions(t_batch=int(arrays["batch"])))
    recipe.engine.load_weights(below(arrays, "weights/"))
    return recipe


def test_logits(arrays):
    expected = arrays["logits"]
    got = make(arrays).engine.logits(arrays["ids"])
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradients(arrays, form):
    recipe = make(arrays)
    hp = arrays["lora/hp"][0].astype(np.float32)
    loss = recipe.step(arrays["ids"], None, arrays[f"{form}/labels"], hp, True)
    assert loss == pytest.approx(float(arrays[f"{form}/loss"]), rel=1e-5)
    got, expected = recipe.engine.gradients(), below(arrays, f"{form}/gradients/")
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        gradient = gradient.astype(np.float64)
        error = ((got[name] - gradient) ** 2).sum() / (gradient**2).sum()
        assert error < 1e-10, (name, error)


@pytest.mark.parametrize("convention", ["lora", "from_scratch"])
@pytest.mark.parametrize("form", FORMS)
def test_ten_losses(arrays, form, convention):
    recipe = make(arrays)
    losses = [
        recipe.step(arrays["ids"], None, arrays[f"{form}/labels"], hp, step == 0)
        for step, hp in enumerate(arrays[f"{convention}/hp"].astype(np.float32))
    ]
    np.testing.assert_allclose(losses, arrays[f"{form}/{convention}/losses"], rtol=1e-5)
