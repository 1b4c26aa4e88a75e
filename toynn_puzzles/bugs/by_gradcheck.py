"""A backward pass with one wrong line, which the loss does not show."""

from typing import Any

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import Expected, compare
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare the loss, then all gradients; say which are right."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (6, 4), "b1": (6,), "w2": (3, 6)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x, labels = rng.standard_normal((5, 4)), np.array([0, 2, 1, 1, 0])
    w1, b1, w2 = weights.values()

    def run(kernel: str, **arrays: Any) -> Any:
        return KERNELS[kernel].compute(**arrays)

    def loss() -> Any:
        h = run("silu.forward", x=x @ w1.T + b1)["y"]
        return run("cross_entropy.forward", logits=h @ w2.T, labels=labels)["loss"]

    u = x @ w1.T + b1
    h = run("silu.forward", x=u)["y"]
    logits = h @ w2.T
    d = run("cross_entropy.backward", dloss=1.0, logits=logits, labels=labels, rows=5.0)["dlogits"]
    du = run("silu.backward", dy=d @ w2, x=u)["dx"]
    right = {"dw1": du.T @ x, "db1": du.sum(0), "dw2": d.T @ h}
    s = 1 / (1 + np.exp(-u))
    bug = d @ w2 * s * (1 + h * (1 - s))
    got = answer.several("loss_and_gradients", "loss, dw1, db1, dw2", w1, b1, w2, x, labels)
    compare("loss", got.pop("loss"), loss().item())
    case = Expected(weights, loss, np.ones(()), right, {"rows": 5})
    same = "dw2 is right, and dw1 and db1 are wrong together. What is computed between them?"
    wrong, first = [], None
    for name in ("dw2", "dw1", "db1"):
        try:
            case.compare({name: got[name]}, dw1={same: bug.T @ x}, db1={same: bug.sum(0)})
        except Wrong as error:
            wrong.append(name)
            first = first or error
    if first:
        others = [name for name in got if name not in wrong]
        told = f"\nRight: {', '.join(others) or 'none'}. Wrong: {', '.join(wrong)}."
        raise Wrong(f"{first}{told}")


PUZZLE = Puzzle(
    title="a bug that gradcheck shows",
    wanted="""\
The forward pass is right, and one line of the backward pass is wrong. The loss falls anyway.
Run this file with python: the last line of the error names the first array whose gradient is
wrong. Find the wrong line.""",
    formula="loss = cross entropy of silu(x w1^T + b1) w2^T",
    code="""
import numpy as np

from toynn.testing import gradcheck


def loss_and_gradients(w1, b1, w2, x, labels):
    n = np.arange(len(x))
    u = x @ w1.T + b1
    s = 1 / (1 + np.exp(-u))
    h = u * s
    logits = h @ w2.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[n, labels]).mean()

    dlogits = p.copy()
    dlogits[n, labels] -= 1
    dlogits /= len(x)
    dw2 = dlogits.T @ h
    dh = dlogits @ w2
    # >>>
    du = dh * s * (1 + u * (1 - s))
    # ---
    du = dh * s * (1 + h * (1 - s))
    # <<<
    dw1 = du.T @ x
    db1 = du.sum(axis=0)
    return loss, dw1, db1, dw2


if __name__ == "__main__":
    draw = np.random.default_rng(0).normal
    x, labels = draw(size=(5, 4)), np.array([0, 2, 1, 1, 0])

    def step(w1, b1, w2):
        loss, *gradients = loss_and_gradients(w1, b1, w2, x, labels)
        return loss, lambda dy: gradients

    # input 0 is w1, input 1 is b1, input 2 is w2
    print(gradcheck(step, [draw(size=(6, 4)), draw(size=6), draw(size=(3, 6))]))
""",
    hints=(
        "gradcheck stops at the first wrong array: w1. Change the order of the three, and see "
        "whether w2 and b1 are right.",
        "w2's gradient is right, so dlogits is. b1's and w1's are wrong, so look at dh and du.",
        "silu(u) = u s(u), so its slope is s + u s (1 - s), in u: the number before silu.",
    ),
    why=(
        "Why does the loss fall with a wrong gradient?",
        "It points downhill, too, if not straight. Only a comparison with finite differences "
        "tells.",
    ),
    same="testing/gradcheck.py",
    check=check,
)
