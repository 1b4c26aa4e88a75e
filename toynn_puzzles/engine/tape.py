"""Autograd: walk a tape backward and add up gradients."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.puzzle import Puzzle

Tape = list[tuple[str, list[tuple[str, float]]]]

#: z = x y, u = 3 z + x, v = x x, loss = u - v; unused = 5 u.
TAPE: Tape = [
    ("z", [("x", 4.0), ("y", 2.0)]),
    ("u", [("z", 3.0), ("x", 1.0)]),
    ("v", [("x", 2.0), ("x", 2.0)]),
    ("unused", [("u", 5.0)]),
    ("loss", [("u", 1.0), ("v", -1.0)]),
]
CHAIN: Tape = [("b", [("a", 2.0)]), ("c", [("b", 3.0)]), ("d", [("c", -1.0)])]


def check(answer: Answer) -> None:
    """Compare all gradients of a chain, then of a tape with several paths and a dead end."""
    for tape, loss, what in ((CHAIN, "d", "a chain a, b, c, d"), (TAPE, "loss", "the example")):
        got = answer("backward", tape, loss)
        if not isinstance(got, dict):
            fail(f"backward should return a dictionary. It returned {type(got).__name__}.")
        right = _solved(tape, loss)
        last: dict[str, float] = {loss: 1.0}
        for out, slopes in reversed(tape):
            for name, slope in slopes:
                last[name] = slope * last.get(out, 0.0)
        ahead: dict[str, float] = {loss: 1.0}
        for out, slopes in tape:
            for name, slope in slopes:
                ahead[name] = ahead.get(name, 0.0) + slope * ahead.get(out, 0.0)
        if loss not in got:
            fail(f"the gradient of the loss itself, {loss!r}, is missing. It is 1: begin with it.")
        for name in sorted(right, key=lambda name: (name != loss, right[name] == 0, name)):
            if name not in got and right[name]:
                fail(f"the gradient of {name!r} is missing, in {what}. It is {right[name]:g}.")
            compare(
                f"grad[{name!r}]",
                got.get(name, 0.0),
                right[name],
                where=f", in {what}",
                suspects={
                    **(
                        {"the gradient of the loss itself is 1: begin with it.": 0.0}
                        if name == loss
                        else {}
                    ),
                    "a gradient is overwritten. If several paths lead from the loss to a "
                    "number, their gradients are added.": last.get(name, 0.0),
                    "the tape is walked from its beginning. Begin at its end: a gradient must be "
                    "complete before it is passed on.": ahead.get(name, 0.0),
                },
            )


def _solved(tape: Tape, loss: str) -> dict[str, float]:
    """Solve the equations grad[i] = (1 if i is the loss) + sum over uses j of slope grad[j]."""
    names = sorted({name for out, slopes in tape for name in (out, *(n for n, _ in slopes))})
    place = {name: i for i, name in enumerate(names)}
    slopes = np.zeros((len(names), len(names)))
    for out, its in tape:
        for name, slope in its:
            slopes[place[name], place[out]] += slope
    one = np.array([float(name == loss) for name in names])
    derivatives = np.linalg.solve(np.eye(len(names)) - slopes, one)
    return {name: round(float(derivatives[i]), 9) for name, i in place.items()}


PUZZLE = Puzzle(
    title="autograd over a tape",
    wanted="""\
Return a dictionary with the gradient of each name on the tape. `loss` is the name of the loss.
The tape lists what was computed, in order: (result, [(input, slope), ...]).""",
    formula="""\
tape = [("z", [("x", 4.0), ("y", 2.0)]),         z = x y at x = 2, y = 4: dz/dx = 4, dz/dy = 2
        ("u", [("z", 3.0), ("x", 1.0)]),         u = 3 z + x: x is used a second time
        ("v", [("x", 2.0), ("x", 2.0)]),         v = x x: x twice in one row
        ("unused", [("u", 5.0)]),                leads nowhere: its gradient is 0
        ("loss", [("u", 1.0), ("v", -1.0)])]     backward(tape, "loss")["y"] is 6.0""",
    code="""
def backward(tape, loss):
    # >>>
    grad = {loss: 1.0}
    for result, inputs in reversed(tape):
        for name, slope in inputs:
            grad[name] = grad.get(name, 0.0) + slope * grad.get(result, 0.0)
    # ---
    grad = {}
    # <<<
    return grad
""",
    hints=(
        "Begin with grad[loss] = 1. Which rows of the tape can pass it on first?",
        "Walk the tape from its end. When a row's turn comes, the gradient of its result is "
        "complete. Multiply it by the slope and pass it to the input.",
        "Several rows may use one input: add. grad[name] = grad.get(name, 0.0) + slope * "
        "grad.get(result, 0.0).",
    ),
    why=(
        "Why from the end to the beginning?",
        "A gradient is a sum over all readers of a tensor. Going back, every reader comes "
        "before the node that made it.",
    ),
    same="graph/autograd.py",
    check=check,
)
