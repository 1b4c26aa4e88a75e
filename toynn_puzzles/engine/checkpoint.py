"""Checkpointing: keep few activations, recompute the others."""

import weakref
from typing import Any

import numpy as np

from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.puzzle import Puzzle

LAYERS, EVERY = 12, 4


class _Layers:
    """Layers y = tanh(w x) that count their calls and the activations in memory."""

    def __init__(self) -> None:
        self.weights = np.random.default_rng(0).normal(0, 0.5, (LAYERS, 5, 5))
        self.forwards, self.backwards = [0] * LAYERS, [0] * LAYERS
        self.most, self._kept = 0, list[Any]()

    def forward(self, i: int, x: Any) -> Any:
        """Return layer i's y, and count the results that are still in memory."""
        self._known(i)
        self.forwards[i] += 1
        y = np.tanh(self.weights[i] @ x)
        self._kept = [each for each in self._kept if each() is not None] + [weakref.ref(y)]
        self.most = max(self.most, len(self._kept))
        return y

    def backward(self, i: int, x: Any, dy: Any) -> Any:
        """Return layer i's dx, from its input and dy."""
        self._known(i)
        self.backwards[i] += 1
        return self.weights[i].T @ ((1 - np.tanh(self.weights[i] @ x) ** 2) * dy)

    def _known(self, i: int) -> None:
        if i not in range(LAYERS):
            raise Wrong(f"there is no layer {i}: the layers are 0 to {LAYERS - 1}.")


def check(answer: Answer) -> None:
    """Compare dx, then check the number of calls and of activations in memory."""
    x, dy = np.linspace(-1, 1, 5), np.linspace(1, 2, 5)
    exact = _Layers()
    xs = [x]
    for i in range(LAYERS):
        xs.append(exact.forward(i, xs[-1]))
    right = shifted = unordered = ahead = dy
    for i in reversed(range(LAYERS)):
        right, shifted = exact.backward(i, xs[i], right), exact.backward(i, xs[i + 1], shifted)
        unordered = exact.backward(i, xs[i // EVERY * EVERY], unordered)
    for start in reversed(range(0, LAYERS, EVERY)):
        for i in range(start, start + EVERY):
            ahead = exact.backward(i, xs[i], ahead)
    layers = _Layers()
    got = answer("gradient", LAYERS, EVERY, layers.forward, layers.backward, x, dy)
    compare(
        "dx",
        got,
        right,
        suspects={
            "backward(i, x, dy) was given layer i's output. It needs its input.": shifted,
            "every layer of a segment was given the segment's first input.": unordered,
            "within a segment the first layer comes first. Go from its last layer to its first.": (
                ahead
            ),
            "dy was returned: backward() was never called.": dy,
        },
    )
    if layers.most > LAYERS // EVERY + EVERY + 1:
        fail(
            f"{layers.most} activations were kept at once, of {LAYERS} layers. With a checkpoint "
            f"every {EVERY} layers, {LAYERS // EVERY + EVERY + 1} are enough.",
            "the forward pass keeps all."
            if layers.most >= LAYERS
            else "activations of a finished segment are kept; drop them before the next one.",
        )
    for i, count in enumerate(layers.forwards):
        if count > 2:
            fail(
                f"layer {i} was computed {count} times. Twice is enough: once in the forward pass, "
                "and once before its backward pass.",
                "each layer is recomputed from a far checkpoint; recompute a segment as a whole.",
            )


PUZZLE = Puzzle(
    title="checkpointing",
    wanted="""\
Return dx, the gradient of layer 0's input x. dy is the gradient of the result of layer n - 1.
`every` layers are a segment. In the forward pass keep only each segment's first input. Then, from
the last segment to the first: recompute the inputs of its layers, use them, drop them.""",
    formula="""\
the segments begin at layers 0, every, 2 * every, ...; n is a multiple of every
y  = forward(i, x)               what layer i makes of x, i = 0 ... n - 1
dx = backward(i, x, dy)          its gradient, from its input x and the gradient of its result""",
    code="""
def gradient(n, every, forward, backward, x, dy):
    # >>>
    kept = {}
    for i in range(n):
        if i % every == 0:
            kept[i] = x
        x = forward(i, x)
    del x
    for start in reversed(range(0, n, every)):
        stop = min(start + every, n)
        inputs = [kept.pop(start)]
        for i in range(start, stop - 1):
            inputs.append(forward(i, inputs[-1]))
        for i in reversed(range(start, stop)):
            dy = backward(i, inputs.pop(), dy)
    # ---
    # your code
    # <<<
    return dy
""",
    hints=(
        "First a forward pass over all n layers, which keeps x where i is a multiple of `every`.",
        "Then the segments, from the last to the first: from the kept input recompute the inputs "
        "of all its layers into a list, then call backward from its last layer to its first.",
        "inputs.pop() gives the last input and drops it at once. A name that still holds an array "
        "keeps it in memory.",
    ),
    why=(
        "For n layers, which `every` needs the least memory?",
        "About sqrt(n): n / every inputs are kept, and `every` more while a segment is computed "
        "again.",
    ),
    same="graph/checkpointing.py",
    check=check,
)
