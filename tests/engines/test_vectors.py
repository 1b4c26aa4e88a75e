"""Losses of vectors against float64 formulas and differences; GradCache against whole batches."""

import numpy as np
import pytest
from small_encoders import written

from toynn.data.texts import Texts
from toynn.engines.encoder import Encoder, Task
from toynn.engines.targets import AdapterOptions
from toynn.engines.vectors import WholeBatch
from toynn.errors import ConfigError, LabelError, ShapeError
from toynn.formats import bases
from toynn.options import RecipeOptions

HP = np.array([0.01, 0.9, 0.999, 1e-8, 0, 1, 1], np.float32)
SCORES = np.float32([0.1, 0.9, 0.4, 0.4, 0.2])
TOLD = np.random.default_rng(6).standard_normal((24, 6)).astype(np.float32)


def log_sum_exp(x):
    return x.max(-1) + np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1))


def unit(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True))


def infonce(x, columns):
    a, others = unit(x)[: len(x) // columns], unit(x)[len(x) // columns :]
    s = 20 * a @ others.T
    return (log_sum_exp(s) - np.diag(s[:, : len(a)])).mean()


def taught(x, columns):
    """Cross-entropy with 0.3 of the labels from a teacher of 6 dimensions."""
    n = len(x) // columns
    told, near = unit(TOLD[: len(x)].astype(float)), 20 * unit(x)[:n] @ unit(x)[n:].T
    z = 20 * told[:n] @ told[n:].T
    p = 0.3 * np.exp(z - log_sum_exp(z)[:, None]) + 0.7 * np.eye(*z.shape)
    return (log_sum_exp(near) - (p * near).sum(1)).mean()


def symmetric(x, columns):
    a, p, *_ = np.split(unit(x), columns)
    s = 20 * p @ a.T
    return (infonce(x, columns) + (log_sum_exp(s) - np.diag(s)).mean()) / 2


def cosent(x, columns):
    c = 20 * (unit(x)[:5] * unit(x)[5:]).sum(1)
    pairs = [c[i] - c[j] for i in range(5) for j in range(5) if SCORES[i] < SCORES[j]]
    return np.log1p(np.exp(pairs).sum())


def triplet(x, columns):
    a, p, q = np.split(x, 3)
    d = np.sqrt(((a - p) ** 2).sum(1)) - np.sqrt(((a - q) ** 2).sum(1))
    return np.maximum(d + 0.5, 0).mean()


@pytest.mark.parametrize("dims", [(), (3, 8)])
@pytest.mark.parametrize(
    ("formula", "columns", "task"),
    [
        (infonce, 2, {}),
        (infonce, 4, {}),
        (taught, 3, {"teacher_weight": 0.3}),
        (symmetric, 3, {"symmetric": True}),
        (cosent, 2, {"loss": "cosent"}),
        (triplet, 3, {"loss": "triplet", "margin": 0.5}),
    ],
)
def test_a_loss_and_its_gradient(formula, columns, task, dims):
    def expected(x):
        return sum(formula(unit(x[:, :d]), columns) for d in dims) if dims else formula(x, columns)

    x = np.random.default_rng(columns).standard_normal((5 * columns, 8))
    labels = {cosent: SCORES, taught: TOLD[: len(x)]}.get(formula)
    found = WholeBatch(Task("vectors", dims=dims, **task), 8, backend="cpu")
    for _ in range(2):  # the second does not see the first
        loss, gradient = found.loss(x.astype("f"), columns, labels)
        assert abs(loss - expected(x)) < 2e-6 * abs(expected(x)) + 1e-6
        differences = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[place] = 1e-5
            differences[place] = (expected(x + step) - expected(x - step)) / 2e-5
        assert np.abs(gradient - differences).max() < 1e-5 * np.abs(differences).max()
    assert found.loss(x.astype("f"), columns, labels, train=False) == (loss, None)


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 32, n).tolist() for n in rng.integers(2, 20, count)]


def step_of(folder, batch, columns, options=None, **task):
    options = RecipeOptions(t_seq=16, t_batch=3, seed=3) if options is None else options
    encoder = Encoder.load(folder, Task("vectors", **task), options, build=False)
    encoder.columns = columns
    encoder.build_training_step()
    return encoder


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        (2, {}),
        (3, {"symmetric": True, "dims": (4, 16)}),
        (3, {"teacher_weight": 0.6}),
        (2, {"loss": "cosent"}),
        (3, {"loss": "triplet"}),
    ],
)
def test_a_batch_in_parts_is_the_whole(columns, task, tmp_path):
    folder, count = written(tmp_path / "a"), 8 * columns
    labels = np.linspace(0, 1, 8) if task.get("loss") == "cosent" else None
    labels = TOLD if "teacher_weight" in task else labels
    batch = Texts.pack(texts(count), labels)
    whole = step_of(folder, batch, columns, **task)
    parts = step_of(folder, batch, columns, mini_batch=5, **task)
    expected, found = (e.accumulate(batch) for e in (whole, parts))
    assert abs(found - expected) < 1e-6 * expected
    assert abs(parts.evaluate(batch) - expected) < 1e-6 * expected
    ours, theirs = parts.gradients(), whole.gradients()
    for name, values in theirs.items():
        assert np.abs(ours[name] - values).max() <= 1e-5 * np.abs(values).max() + 1e-7, name
    more = Texts.pack(texts(count, 9), labels)  # the next batch of the same update
    for encoder in (whole, parts):
        encoder.train(more, HP, True)
    ours, theirs = parts.gradients(), whole.gradients()
    for name, values in theirs.items():
        assert np.abs(ours[name] - values).max() <= 1e-5 * np.abs(values).max() + 1e-7, name
    assert parts.step_index == 1 and len(parts.session._compiled) == 1


def test_both_passes_of_a_part_have_the_same_dropout(tmp_path):
    Encoder.load(written(tmp_path / "a")).export_gguf(tmp_path / "a.gguf")

    def found(**task):
        encoder = Encoder()
        encoder.enable_lora(AdapterOptions(4, targets=("all-linear",), dropout=0.3))
        with bases.open(tmp_path / "a.gguf") as file:
            options = RecipeOptions(t_seq=64, t_batch=4, seed=3)
            encoder.map(file, options, Task("vectors", **task))
        encoder.init_adapters("peft", 0, 0.02)
        encoder.build_training_step()
        losses = [encoder.train(Texts.pack(texts(8)), HP, n == 0) for n in range(3)]
        return losses, encoder.gradients()

    (whole, expected), (parts, gradients) = found(), found(mini_batch=8)
    assert np.abs(np.subtract(parts, whole)).max() < 1e-5
    for name, values in expected.items():
        assert np.abs(gradients[name] - values).max() <= 1e-3 * np.abs(values).max() + 1e-7, name


def test_what_does_not_fit_is_refused(tmp_path):
    folder = written(tmp_path / "a")
    for columns, task, message in (
        (2, {"loss": "triplet"}, "triplet does not take 2 columns"),
        (3, {"loss": "cosent"}, "cosent does not take 3 columns"),
        (2, {"dims": (17,)}, "dims must be at most 16"),
        (2, {"dims": (0,)}, "dims must be at least 1"),
        (2, {"loss": "cosent", "teacher_weight": 0.5}, "teacher_weight is for infonce"),
    ):
        with pytest.raises(ConfigError, match=message):
            step_of(folder, None, columns, **task)
    encoder = step_of(folder, None, 2, loss="cosent", mini_batch=4)
    with pytest.raises(LabelError, match="cosent needs labels"):
        encoder.evaluate(Texts.pack(texts(4)))
    with pytest.raises(ShapeError, match="3 texts are not examples of 2 columns"):
        encoder.evaluate(Texts.pack(texts(3), [1, 2]))
