"""Muon beside torch.optim.Muon, which rounds to bfloat16 inside."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

from toynn import Session  # noqa: E402


@pytest.mark.parametrize("shape", [(48, 32), (32, 48)])
def test_four_steps_are_those_of_torch(shape):
    """Momentum to a rounding; the way that the weights went within 2 %, bfloat16's error."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    gradients = rng.standard_normal((4, *shape)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.tensor(w))
    options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    optimizer = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    s = Session()
    ours, g = s.parameter("w", w), s.input("g", shape)
    step = s.minimize((ours * g).sum(), lr=0.01, muon=[ours], beta1=0.9, weight_decay=0.1)
    for values in gradients:
        theirs.grad = torch.tensor(values)
        optimizer.step()
        step(g=values)
    right, got = theirs.detach().numpy() - w, s.download(ours) - w
    assert np.linalg.norm(got - right) < 0.02 * np.linalg.norm(right)
    m = optimizer.state[theirs]["momentum_buffer"].numpy() / (1 - 0.9)  # theirs is a mean
    mine = s.download(next(t for t in s.tape.roots if t.name == "w.m"))
    assert np.abs(mine - m).max() < 1e-5 * np.abs(m).max()
