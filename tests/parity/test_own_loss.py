"""The programs of docs/own-loss.md beside the same ones in PyTorch: losses, and gradients."""

import re
from pathlib import Path

import numpy as np
import pytest
from pages import data_of

pytest.importorskip("sklearn", reason="scikit-learn, the images extra, is not installed")
torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

from toynn.explorer import page  # noqa: E402

pytestmark = pytest.mark.parity

PAGE = Path(__file__).parents[2] / "docs" / "own-loss.md"
BLOCKS = dict(re.findall(r"^## (.*?)\n.*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S))


def cross_entropy(z, t):
    return torch.nn.functional.cross_entropy(z, t.argmax(1))


def linear(p, x, t):
    return torch.nn.functional.mse_loss(x @ p["w"] + p["b"], t)


def logistic(p, x, t):
    return torch.nn.functional.softplus(-t * (x @ p["w"] + p["b"])).mean()


def net(p, x, t):
    return cross_entropy(torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], t)


def autoencoder(p, x, noise):
    h = torch.tanh(x @ p["w1"])
    mean, logvar = h @ p["mean"], h @ p["logvar"]
    y = torch.tanh((mean + torch.exp(logvar / 2) * noise) @ p["w2"]) @ p["w3"]
    pixels = torch.nn.functional.binary_cross_entropy_with_logits(y, x, reduction="none").sum(1)
    return (pixels + (mean**2 + logvar.exp() - logvar - 1).sum(1) / 2).mean()


def convolution(p, x, t):
    filters = p["filters"].T.reshape(6, 1, 3, 3)
    maps = torch.relu(torch.nn.functional.conv2d(x[:, None], filters))
    pooled = torch.nn.functional.avg_pool2d(maps, 2).permute(0, 2, 3, 1).reshape(len(x), -1)
    return cross_entropy(pooled @ p["w"], t)


TWINS = {
    "Linear regression": linear,
    "Logistic regression": logistic,
    "A net on digits": net,
    "A variational autoencoder": autoencoder,
    "A convolution": convolution,
}


def test_each_program_has_its_twin():
    assert BLOCKS.keys() == TWINS.keys()
    assert all(len(code.strip().splitlines()) <= 20 for code in BLOCKS.values())


@pytest.mark.parametrize("name", TWINS)
def test_losses_and_gradients_are_pytorchs(name):
    """Ten losses and the first gradients, to 1e-5; later ones differ more, by AdamW's roots."""
    given, gradients, names = [], {}, {}
    head, last = BLOCKS[name].split("losses = ")
    exec(head, names)
    s, step = names["s"], names["step"]
    weights = [t for t in s.tape.gradients if t.role.value == "parameter"]
    parameters = {w.name: torch.tensor(s.download(w), dtype=torch.float64) for w in weights}

    def watched(**values):
        given.append(values)
        loss = step(**values)
        if len(given) == 1:
            gradients.update({w.name: s.download(s.grad(w)) for w in weights})
        return loss

    names["step"] = watched
    exec(f"losses = {last}", names)
    lr = float(re.search(r"lr=([\d.]+)", head)[1])
    adamw = torch.optim.AdamW([p.requires_grad_() for p in parameters.values()], lr, weight_decay=0)
    for k, values in enumerate(given[:10]):
        tensors = (torch.tensor(np.float32(v), dtype=torch.float64) for v in values.values())
        adamw.zero_grad()
        loss = TWINS[name](parameters, *tensors)
        loss.backward()
        assert names["losses"][k] == pytest.approx(loss.item(), rel=1e-5), k
        for w, gradient in gradients.items() if k == 0 else ():
            expected = parameters[w].grad.numpy()
            assert np.abs(gradient - expected).max() <= 1e-5 * np.abs(expected).max(), w
        adamw.step()
    shown = str(s.tape)
    assert "sums.forward" in shown and "adamw.step" in shown and len(shown.splitlines()) > 15
    assert "sums.expand" in data_of(page(s).html)["kernels"]
