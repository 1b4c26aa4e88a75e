"""GPT-2 against an independent float64 model: logits, loss, gradients, training."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

import torch
import torch_gpt2 as reference

from toynn import AdamW, GPT2Config, GPT2SeqEngine, RecipeOptions
from toynn.recipes import GPT2

pytestmark = pytest.mark.parity

SIZES = {"vocab": 61, "d_model": 24, "n_heads": 3, "d_ff": 40, "n_layers": 2, "context": 16}
T = 13  # below the context: the rest of the position table gets no gradient
LOSS = 1e-5  # relative
GRADIENT = 1e-10  # normalised mean square error
FORMS = ["integer", "ignored", "dense"]
CONVENTIONS = {"lora": AdamW.for_lora, "from_scratch": AdamW.for_from_scratch}


def make(batch=1, init="gpt2", **options):
    """A recipe, and the reference with the same weights."""
    recipe = GPT2()
    recipe.realize(GPT2Config(**SIZES, init=init), RecipeOptions(T, batch, seed=5, **options))
    return recipe, reference.Model(recipe.engine.weights(), SIZES["n_heads"])


def shake(recipe, rng):
    """Load random weights, biases and gains too, so that no gradient is small; return them."""
    weights = {
        name: (name.endswith("norm.weight") + 0.3 * rng.standard_normal(w.shape)).astype(np.float32)
        for name, w in recipe.engine.weights().items()
    }
    recipe.engine.load_weights(weights)
    return reference.Model(weights, SIZES["n_heads"])


def draw(rng, batch, form):
    """Ids and labels of one batch."""
    ids, labels = rng.integers(0, SIZES["vocab"], (2, batch * T)).astype(np.int32)
    if form == "ignored":
        labels[rng.permutation(labels.size)[: labels.size // 3]] = -100
    elif form == "dense":
        labels = rng.random((labels.size, SIZES["vocab"])).astype(np.float32) ** 8
        labels[::2] /= labels[::2].sum(axis=1, keepdims=True)  # the others do not sum to 1
        labels[3] = labels[-1] = 0  # ignored
    return ids, labels


def hp(convention, step, lr=3e-3, weight_decay=0.1):
    adamw = CONVENTIONS[convention]()
    adamw.lr, adamw.weight_decay = lr, weight_decay
    return adamw.hp_for_step(step)


def assert_gradients_agree(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        error = ((got[name] - gradient) ** 2).sum() / (gradient**2).sum()
        assert error < GRADIENT, (name, error)


def test_weights_have_the_names_and_shapes_of_gguf():
    recipe, _ = make()
    sizes = {name: size for name, size in SIZES.items() if name != "n_heads"}
    got = {name: w.shape for name, w in recipe.engine.weights().items()}
    assert got == reference.shapes(**sizes)


@pytest.mark.parametrize("init", ["gpt2", "lcg"])
@pytest.mark.parametrize("batch", [1, 3])
def test_logits(batch, init):
    recipe, model = make(batch, init)
    for random_weights in (False, True):
        if random_weights:
            model = shake(recipe, np.random.default_rng(1))
        ids, _ = draw(np.random.default_rng(2), batch, "integer")
        expected = model.logits(ids, batch).detach().numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(recipe.engine.logits(ids), expected, rtol=0, atol=3e-6 * scale)
        short = expected[:5]
        np.testing.assert_allclose(recipe.engine.logits(ids[:5]), short, rtol=0, atol=3e-6 * scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", ["gpt2", "lcg", "random"])
@pytest.mark.parametrize("batch", [1, 3])
def test_loss_and_gradients(batch, weights, form):
    rng = np.random.default_rng(3)
    recipe, model = make(batch, "lcg" if weights == "lcg" else "gpt2")
    if weights == "random":
        model = shake(recipe, rng)
    ids, labels = draw(rng, batch, form)
    expected = model.backward(ids, labels, batch)
    assert recipe.evaluate(ids, None, labels) == pytest.approx(expected, rel=LOSS)
    assert recipe.step(ids, None, labels, hp("lora", 0), True) == pytest.approx(expected, rel=LOSS)
    assert_gradients_agree(recipe.engine.gradients(), model.gradients())


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("batch", "init"), [(1, "gpt2"), (1, "lcg"), (3, "gpt2")])
def test_ten_losses(batch, init, form, convention):
    rng = np.random.default_rng(4)
    recipe, model = make(batch, init)
    got, expected = [], []
    for step in range(10):
        ids, labels = draw(rng, batch, form)
        got.append(recipe.step(ids, None, labels, hp(convention, step), step == 0))
        row = reference.hp_row(convention, step, 3e-3, 0.1)
        np.testing.assert_allclose(hp(convention, step), row, rtol=1e-7)
        expected.append(model.step(ids, labels, row, batch))
    np.testing.assert_allclose(got, expected, rtol=LOSS)
    assert recipe.step_index == 10


def test_a_size_at_which_kernels_block_and_use_threads():
    sizes = {"vocab": 627, "d_model": 96, "n_heads": 4, "d_ff": 384, "n_layers": 2, "context": 130}
    recipe = GPT2()
    recipe.realize(GPT2Config(**sizes), RecipeOptions(t_batch=2, seed=6))
    model = reference.Model(recipe.engine.weights(), sizes["n_heads"])
    ids, labels = np.random.default_rng(10).integers(0, sizes["vocab"], (2, 260)).astype(np.int32)
    for step in range(3):
        row = hp("lora", step)
        loss = recipe.step(ids, None, labels, row, step == 0)
        assert loss == pytest.approx(model.step(ids, labels, row.astype(float), 2), rel=LOSS)
        if step == 0:
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())


def test_the_seeds_own_engine():
    engine = GPT2SeqEngine()
    engine.realize(*SIZES.values(), seed=9)
    model = reference.Model(engine.weights(), SIZES["n_heads"])
    rng = np.random.default_rng(5)
    ids, labels = rng.integers(0, SIZES["vocab"], (2, SIZES["context"])).astype(np.int32)
    positions = np.arange(SIZES["context"], dtype=np.int32)
    for step in range(10):
        one_hot = np.eye(SIZES["vocab"], dtype=np.float32)[
            labels
        ]  # the reference program's only form
        row = hp("lora", step)
        loss = engine.step(ids, positions, one_hot, row, step == 0)
        assert loss == pytest.approx(model.step(ids, labels, row.astype(float), 1), rel=LOSS)
        if step == 0:  # later the weights differ by what rounding did
            assert_gradients_agree(engine.gradients(), model.gradients())


def test_given_positions_are_used():
    recipe, model = make()
    model = shake(recipe, np.random.default_rng(6))
    ids, labels = draw(np.random.default_rng(7), 1, "integer")
    order = np.roll(np.arange(SIZES["context"], dtype=np.int32), 3)[:T]
    with torch.no_grad():
        table = model.weights["position_embd.weight"]
        table[:T] = table[order.tolist()]
    expected = model.backward(ids, labels, 1)
    assert recipe.evaluate(ids, order, labels) == pytest.approx(expected, rel=LOSS)


@pytest.mark.parametrize("form", FORMS)
def test_micro_batches_equal_one_batch(form):
    """Weighted by tokens: the parts do not have equally many rows that count."""
    rng = np.random.default_rng(8)
    recipe, _ = make()
    model = shake(recipe, rng)
    ids, labels = draw(rng, 3, form)
    if form == "ignored":
        labels[: T - 2] = -100
    for step in range(3):
        parts = [slice(i * T, (i + 1) * T) for i in range(3)]
        for part in parts[:-1]:
            recipe.accumulate(ids[part], None, labels[part])
        row = hp("lora", step)
        recipe.step(ids[parts[-1]], None, labels[parts[-1]], row, step == 0)
        model.step(ids, labels, row.astype(float), 3)
        if step == 0:  # later the weights differ by what rounding did
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())
    rows = (labels != -100) if labels.ndim == 1 else labels.any(axis=1)
    losses = [recipe.evaluate(ids[part], None, labels[part]) for part in parts]
    total = sum(loss * rows[part].sum() for loss, part in zip(losses, parts, strict=True))
    expected = model.backward(ids, labels, 3)
    assert total / rows.sum() == pytest.approx(expected, rel=LOSS)


@pytest.mark.parametrize("micro", [False, True])
def test_clipping(micro):
    rng = np.random.default_rng(9)
    recipe, _ = make(batch=1 if micro else 3)
    model = shake(recipe, rng)
    recipe.engine.session.max_grad_norm = 0.5
    ids, labels = draw(rng, 3, "ignored")
    norms = []
    for step in range(5):
        row, ours = reference.hp_row("from_scratch", step, 3e-3), hp("from_scratch", step, 3e-3, 0)
        for part in range(2 if micro else 0):
            rows = slice(part * T, (part + 1) * T)
            recipe.accumulate(ids[rows], None, labels[rows])
        rest = slice(2 * T, None) if micro else slice(None)
        recipe.step(ids[rest], None, labels[rest], ours, step == 0)
        model.backward(ids, labels, 3)
        if step == 0:
            assert_gradients_agree(recipe.engine.gradients(), model.gradients())
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(model.weights.values()), 0.5)))
        model.update(row)
        assert recipe.engine.session.grad_norm == pytest.approx(norms[-1], rel=LOSS)
    assert min(norms) > 0.5, "nothing was clipped"
    for name, (m, v) in recipe.engine.moments.items():
        for moment, expected in zip((m, v), model.moments[name], strict=True):
            got = recipe.engine.session.download(moment)
            scale = float(expected.abs().max())
            np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=3e-5 * scale)
