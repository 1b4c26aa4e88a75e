"""Muon against its formula in float64, on any shape, level, thread count and backend."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import toynn
from toynn import Session, ops
from toynn.cli import main
from toynn.errors import ConfigError, NonFiniteError, ShapeError

HP = np.array([2e-2, 0.95, 0.9, 1e-8, 0.1, 1, 1], np.float32)


def newton_schulz(g):
    """The formula of the paper, in float64."""
    x = g / (np.sqrt((g * g).sum()) + 1e-7)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def steps(w, gradients, lr=2e-2, momentum=0.95, decay=0.1):
    w, m = w.astype(float), np.zeros(w.shape)
    for g in gradients:
        m = momentum * m + g
        w = w * (1 - lr * decay) - lr * 0.2 * max(w.shape) ** 0.5 * newton_schulz(g + momentum * m)
    return w, m


def recorded(w, backend="cpu", n_threads=None):
    """A loss whose gradient by w is the input g: sum of w g."""
    s = Session(backend, n_threads=n_threads)
    parameter, g = s.parameter("w", w), s.input("g", w.shape)
    loss = (parameter * g).sum()
    s.set_loss(loss)
    s.build_backward()
    hp = s.input("hp", (7,))
    m = s.opt_step_muon(parameter, s.grad(parameter), hp)
    s.finalize_weights()
    s.realize()
    s.upload(hp, HP)
    return s, parameter, m, g


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16), (1, 9), (9, 1), (130, 70)])
def test_three_steps_are_those_of_the_formula(shape, backend):
    rng = np.random.default_rng(0)
    w = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    gradients = rng.standard_normal((3, *shape)).astype(np.float32)
    s, parameter, m, g = recorded(w, backend)
    for values in gradients:
        s.upload(g, values)
        s.run()
    right, momentum = steps(w, gradients.astype(float))
    assert np.abs(s.download(m) - momentum).max() <= 1e-6 * np.abs(momentum).max()
    moved = np.abs(right - w).max()
    assert np.abs(s.download(parameter) - right).max() <= 1e-6 * max(moved, np.abs(right).max())


def test_an_update_has_singular_values_near_one():
    """Of a gradient of rank 3 and very different sizes: the first three are near 1, others 0."""
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((n, 3)))[0] for n in (20, 30))
    w = np.zeros((20, 30), np.float32)
    s, parameter, _, g = recorded(w)
    s.upload(g, (left * [3.0, 0.5, 0.05]) @ right.T)
    s.run()
    sizes = np.linalg.svd(s.download(parameter))[1] / (HP[0] * 0.2 * 30**0.5)
    assert (sizes[:3] > 0.6).all() and (sizes[:3] < 1.2).all() and sizes[3:].max() < 1e-3


def test_a_gradient_that_is_not_finite_changes_nothing():
    w = np.ones((4, 6), np.float32)
    s, parameter, m, g = recorded(w)
    s.upload(g, np.full((4, 6), 0.5))
    s.run()
    before = s.download(parameter), s.download(m)
    s.upload(g, np.where(np.arange(24).reshape(4, 6) == 3, np.inf, 1.0))
    with pytest.raises(NonFiniteError):
        s.run()
    assert np.array_equal(s.download(parameter), before[0])
    assert np.array_equal(s.download(m), before[1])


def test_threads_do_not_change_bits():
    rng = np.random.default_rng(2)
    w = rng.standard_normal((150, 90)).astype(np.float32)
    results = set()
    for n_threads in (1, 2, 3):
        s, parameter, _, g = recorded(w, n_threads=n_threads)
        s.upload(g, np.random.default_rng(3).standard_normal(w.shape))
        s.run()
        results.add(s.download(parameter).tobytes())
    assert len(results) == 1


def test_minimize_takes_the_matrices_that_muon_updates():
    rng = np.random.default_rng(4)
    s = Session()
    w1, w2 = (s.parameter(name, rng.standard_normal((8, 8)) * 0.3) for name in ("w1", "w2"))
    x, y = s.input("x", (16, 8)), s.input("y", (16, 8))
    out = ops.linear(s, ops.tanh(s, ops.linear(s, x, w1)), w2)
    step = s.minimize(((out - y) ** 2).mean(), lr=0.02, muon=[w1], beta1=0.95)
    kernels = {n.op.kernel for n in s.tape.nodes if n.phase == "U" and w1 in n.outputs}
    assert kernels == {"muon.step"}
    x0 = rng.standard_normal((16, 8))
    losses = [step(x=x0, y=np.tanh(x0)) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]


def test_what_muon_refuses():
    s = Session()
    v = s.parameter("v", np.ones(4))
    s.set_loss((v * v).sum())
    s.build_backward()
    hp = s.input("hp", (7,))
    with pytest.raises(ShapeError, match=r"opt_step_muon: needs a matrix \(R, C\); got v \(4,\)"):
        s.opt_step_muon(v, s.grad(v), hp)
    with pytest.raises(ConfigError, match="opt_step_muon: needs a parameter and its grad"):
        s.opt_step_muon(s.grad(v), v, hp)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_a_recipe_updates_the_matrices_of_its_blocks(momentum):
    config = toynn.GPT2Config(29, 16, 2, 24, 2, 8)
    options = toynn.RecipeOptions(seed=1, optimizer="muon", momentum=momentum, decay="matrices")
    recipe = toynn.recipes.GPT2()
    recipe.realize(config, options)
    engine = recipe.engine
    nodes = [node for node in engine.session.tape.nodes if node.phase == "U"]
    muon = {node["w"].name for node in nodes if node.op.kernel == "muon.step"}
    matrices = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    assert muon == {f"blk.{n}.{name}.weight" for n in (0, 1) for name in matrices}
    adamw = {node["w"].name for node in nodes if node.op.kernel == "adamw.step"}
    assert adamw | muon == set(engine.parameters) and not adamw & muon
    before, rng = engine.weights(), np.random.default_rng(0)
    ids, labels = rng.integers(0, 29, (2, 8))
    name, optimizer = "blk.1.ffn_up.weight", toynn.AdamW.for_lora(1e-2, weight_decay=0.1)
    recipe.step(ids, None, labels, optimizer.hp_for_step(0), True)
    g = engine.gradients()[name].astype(float)
    scale = float(engine.session.download(next(n for n in nodes if "scale" in n.named)["scale"]))
    right, _ = steps(before[name], [g * scale], lr=1e-2, momentum=momentum, decay=0.1)
    assert np.abs(engine.weights()[name] - right).max() <= 1e-6


def test_muon_resumes_with_the_same_bits(tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("a small text that is learned by heart. " * 60)
    words = [
        "--optimizer",
        "muon",
        "--lr-schedule",
        "constant",
        "--layers",
        "1",
        "--d-model",
        "16",
        "--heads",
        "2",
        "--seq",
    ]
    words += ["16", "--batch", "2", "--eval-every", "0", "--save-every", "2", "--data", str(data)]
    whole, part = str(tmp_path / "whole"), str(tmp_path / "part")
    assert main(["train", "gpt2", *words, "--steps", "6", "--out", whole]) == 0
    assert main(["train", "gpt2", *words, "--steps", "4", "--out", part]) == 0
    assert main(["train", "--resume", part, "--steps", "6"]) == 0
    first, second = (load_file(Path(out) / "model.safetensors") for out in (whole, part))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
