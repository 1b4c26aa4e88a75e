"""Routing by a softmax or a sigmoid against PyTorch in float64: a mixture's sum, its gradients."""

import numpy as np
import pytest
from tapes import B, C, N, Net

from toynn.errors import ConfigError
from toynn.nn import Layers

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

pytestmark = pytest.mark.parity

E, K, F = 5, 2, 4  # experts, those that a row uses, their width
SHAPES = {"router": (E, C), "gate": (E, F, C), "up": (E, F, C), "down": (E, C, F)}
BIAS = np.float32([-0.4, 0.3, 0.0, -0.2, 0.5])  # that chooses


def recorded(net, **routing):
    """Layers with a mixture's weights, the rows, and what the experts make of them."""
    x = net.parameter(N, C)
    weights = {f"{name}.weight": net.parameter(*shape) for name, shape in SHAPES.items()}
    if routing.get("choice"):
        weights["choice.bias"] = net.declare(net.s.constant("b", (E,)), BIAS)
    layers = Layers(session=net.s, weights=weights, batch=B)
    routes = layers.routes(x, "router", K, **routing)
    return layers.mixture(x, "gate", "up", "down", routes), routes


def theirs(x, router, gate, up, down, score, normalized, scale, eps, choice):
    """What each expert makes of each row, times what it counts there."""
    logits = x @ router.T
    p = torch.sigmoid(logits) if score == "sigmoid" else torch.softmax(logits, 1)
    chosen = (p + torch.tensor(BIAS) * bool(choice)).topk(K).indices
    kept = p.gather(1, chosen)
    if normalized:
        kept = kept / (kept.sum(1, keepdim=True) + eps)
    counts = torch.zeros_like(p).scatter(1, chosen, scale * kept)
    h = torch.einsum("nc,efc->nef", x, gate)
    h = torch.nn.functional.silu(h) * torch.einsum("nc,efc->nef", x, up)
    return torch.einsum("ne,nef,ecf->nc", counts, h, down), kept * scale


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("scale", "eps", "choice"), [(1.0, 0.0, ""), (2.5, 0.1, "choice")])
def test_a_mixture_and_its_gradients(score, normalized, scale, eps, choice):
    net = Net(n_threads=1)
    routing = {"normalized": normalized, "score": score, "scale": scale}
    routing |= {"eps": eps, "choice": choice}
    y, routes = recorded(net, **routing)
    for tensor in (y, routes.weights):
        net.s.output(tensor)
    s = net.realize(net.loss(y))
    s.run("grads")
    values = [torch.tensor(net.values[w], requires_grad=True) for w in net.parameters()]
    expected, counts = theirs(*values, **routing)
    (labels,) = (v for t, v in net.values.items() if t.dtype == "i32")
    loss = torch.nn.functional.cross_entropy(expected, torch.tensor(labels))
    loss.backward()
    pairs = [(y, expected.detach()), (routes.weights, counts.detach())]
    pairs += [(g, w.grad) for g, w in zip(net.gradients, values, strict=True)]
    for got, judge in pairs:
        error = np.abs(s.download(got) - judge.numpy()).max()
        assert error < 2e-6 * judge.abs().max().item()


def test_another_score_is_refused():
    with pytest.raises(ConfigError, match="score must be one of softmax, sigmoid; got 'relu'"):
        recorded(Net(), normalized=True, score="relu")
