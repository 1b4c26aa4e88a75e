"""A training loop with right gradients and a wrong loss curve."""

import math
from functools import partial

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.puzzle import Puzzle

STEPS, WARMUP, TOP = 60, 20, 0.1
V = 5


def check(answer: Answer) -> None:
    """Check the curve, then the learning rates, then compare the losses with the reference's."""
    losses, exact = np.array(answer("train"), float), _train()
    if losses.shape == exact.shape:
        begin = f"{losses[0]:.4g}"
        flat = int(np.argmax(losses != losses[0])) or STEPS
        if losses[-1] > losses[0]:
            fail(
                f"the loss rises: from {begin} to {losses[-1]:.4g}.",
                "a step in the direction of the gradient goes uphill.",
            )
        if flat > 2:
            fail(
                f"the loss stays at {begin} for {flat} steps; it should fall from the first on.",
                "the update is 0 there. Which of its factors is?",
            )
    got, right = (
        np.array([each(step) for step in range(STEPS)], float)
        for each in (partial(answer, "rate"), _rate)
    )
    rising, steps = np.arange(STEPS) < WARMUP, np.arange(STEPS)
    compare(
        "rate",
        got,
        right,
        suspects={
            "there is no warm-up.": np.where(rising, TOP, right),
            "after the warm-up the rate does not fall.": np.minimum(
                TOP * (steps + 1) / WARMUP, TOP
            ),
            "the first step has a rate of 0; it should have 1 / warmup of the top.": np.where(
                rising, TOP * steps / WARMUP, right
            ),
        },
    )
    compare("losses", losses, exact, tolerance=1e-6)


def _rate(step: int) -> float:
    if step < WARMUP:
        return TOP * (step + 1) / WARMUP
    return TOP * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def _train() -> np.ndarray:
    """Return the right losses, computed by the reference kernels."""
    rng = np.random.default_rng(0)
    ids, w = rng.integers(0, V, 64).cumsum() % V, np.zeros((V, V))
    x, labels = ids[:-1], ids[1:]
    state, losses = {"w": w, "m": np.zeros((V, V)), "v": np.zeros((V, V))}, []
    for step in range(STEPS):
        logits = KERNELS["embedding.forward"].compute(w=state["w"], ids=x)["y"]
        outputs = KERNELS["cross_entropy.forward"].compute(logits=logits, labels=labels)
        losses.append(float(outputs["loss"].item()))
        d = KERNELS["cross_entropy.backward"].compute(
            dloss=1.0, logits=logits, labels=labels, rows=outputs["rows"]
        )["dlogits"]
        g = KERNELS["embedding.backward"].compute(dy=d, ids=x, V=V)["dw"]
        hp = [_rate(step), 0.9, 0.99, 1e-8, 0.0, 1 / (1 - 0.9 ** (step + 1))]
        hp.append(1 / (1 - 0.99 ** (step + 1)))
        state = KERNELS["adamw.step"].compute(**state, g=g, hp=np.array(hp), scale=np.ones(1))
    return np.array(losses)


PUZZLE = Puzzle(
    title="a bug that the curve shows",
    wanted="""\
A bigram model. Its gradients are right. The learning rate should rise in even steps from
top / warmup to top, then fall to 0 as a half cosine. Run this file with python: it draws the loss.
What is wrong with the curve? Mend rate() or train().""",
    code="""
import math

import numpy as np


def rate(step, steps=60, warmup=20, top=0.1):
    if step < warmup:
        # >>>
        return (step + 1) / warmup * top
        # ---
        return (step + 1) // warmup * top
        # <<<
    return top * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def train():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, 64).cumsum() % 5
    x, labels = ids[:-1], ids[1:]
    w, m, v, losses = np.zeros((5, 5)), np.zeros((5, 5)), np.zeros((5, 5)), []
    for step in range(60):
        p = np.exp(w[x])
        p /= p.sum(axis=1, keepdims=True)
        rows = np.arange(len(x))
        losses.append(-np.log(p[rows, labels]).mean())
        p[rows, labels] -= 1
        g = np.zeros_like(w)
        np.add.at(g, x, p / len(x))
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        mean, square = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
        w = w - rate(step) * mean / (np.sqrt(square) + 1e-8)
    return losses


if __name__ == "__main__":
    losses = train()
    for step in range(0, 60, 3):
        print(f"{step:3} {losses[step]:.4f} " + "#" * round(200 * (losses[step] - 1.3)))
""",
    hints=(
        "At which step does the loss begin to fall? What ends at that step?",
        "Print rate(0), rate(5), rate(10).",
        "// rounds down: (step + 1) // warmup is 0 until the warm-up is over. / divides.",
    ),
    why=(
        "Gradcheck is green here, and no error is raised. What else shows in the curve alone?",
        "Wrong rates, data that repeats or is not shuffled, labels that are not shifted, a "
        "forgotten reset.",
    ),
    same="optim/schedule.py",
    check=check,
)
