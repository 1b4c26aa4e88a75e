"""A step whose tape shows that half of the model is not trained."""

from typing import Any

import numpy as np

from toynn.backends.reference import KERNELS
from toynn.session import Session
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

N, C, F, V = 5, 4, 8, 3


def check(answer: Answer) -> None:
    """Check for missing gradients, then compare the loss with the reference's."""
    rng = np.random.default_rng(0)
    shapes = {"up.0": (F, C), "down.0": (C, F), "up.1": (F, C), "down.1": (C, F), "out": (V, C)}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    x, labels = rng.standard_normal((N, C)).astype(np.float32), rng.integers(0, V, N)
    with Session() as s:
        w = {name: s.parameter(name, value) for name, value in weights.items()}
        tensors = s.input("x", (N, C)), s.input("labels", (N,), "i32")
        blocks = [(w["up.0"], w["down.0"]), (w["up.1"], w["down.1"])]
        loss = answer("record", s, *tensors, blocks, w["out"])
        if loss is None:
            raise Wrong("record returned None; it should return the loss.")
        step = s.minimize(loss, lr=1e-3)
        got = step(x=x, labels=labels)
        trained = s.tape.gradients or {}
        missing = [name for name, tensor in w.items() if tensor not in trained]
    if missing:
        raise Wrong(
            f"{' and '.join(missing)} get no gradient: the tape has no node d_{missing[0]}, and no "
            f"adamw.step for {missing[0]}.\nSuspicion: nothing that leads to the loss reads what "
            f"{missing[0]} computes. Look at which tensor the next matmul.forward reads."
        )

    def forward(normed: bool = True, added: bool = True, silu: bool = True) -> float:
        h: Any = x.astype(float)
        for i in range(2):
            u = h
            if normed:
                u = KERNELS["rmsnorm.forward"].compute(x=u, w=np.ones(C), eps=1e-5)["y"]
            u = u @ weights[f"up.{i}"].T
            u = (KERNELS["silu.forward"].compute(x=u)["y"] if silu else u) @ weights[f"down.{i}"].T
            h = h + u if added else u
        logits = h @ weights["out"].T
        loss_of = KERNELS["cross_entropy.forward"].compute(logits=logits, labels=labels)["loss"]
        return float(loss_of.item())

    compare(
        "the loss",
        got,
        forward(),
        tolerance=1e-5,
        suspects={
            "the block's input is not added to its result (the residual connection).": forward(
                added=False
            ),
            "the norm is left out: each block begins with rmsnorm.": forward(normed=False),
            "silu is left out, between up and down.": forward(silu=False),
        },
    )


PUZZLE = Puzzle(
    title="a bug that the tape shows",
    wanted="""\
A model of two blocks with residual connections. Its loss falls and its gradients pass gradcheck,
yet it learns too little. Run this file with python: it prints the tape. Find the bug there, and
mend record().""",
    formula="each block: x = x + down(silu(up(rmsnorm(x))))          then: loss of out(x)",
    code="""
import numpy as np

from toynn import Session, ops


def record(s, x, labels, blocks, out):
    gain = s.constant("gain", np.ones(4))
    for up, down in blocks:
        h = ops.rmsnorm(s, x, gain)
        h = ops.silu(s, ops.linear(s, h, up))
        # >>>
        x = ops.add(s, x, ops.linear(s, h, down))
    logits = ops.linear(s, x, out)
    # ---
        y = ops.add(s, x, ops.linear(s, h, down))
    logits = ops.linear(s, y, out)
    # <<<
    return ops.cross_entropy(s, logits, labels)


if __name__ == "__main__":
    draw = np.random.default_rng(0).normal
    with Session() as s:
        blocks = [
            (s.parameter(f"up.{i}", draw(size=(8, 4))), s.parameter(f"down.{i}", draw(size=(4, 8))))
            for i in range(2)
        ]
        out = s.parameter("out", draw(size=(3, 4)))
        x, labels = s.input("x", (5, 4)), s.input("labels", (5,), "i32")
        s.minimize(record(s, x, labels, blocks, out))
        print(s.tape)
""",
    hints=(
        "The last rows of the tape are the updates. Which weights have an adamw.step, and which "
        "have none?",
        "Find the nodes of phase F that read up.0 and down.0. Which node reads their result?",
        "The second block must read what the first one made. In the loop, y is made anew from the "
        "same x each time.",
    ),
    why=(
        "Why did nothing raise an error?",
        "The tensor that is read has the right shape. Only its place in the model is wrong, and "
        "that the tape shows.",
    ),
    same="graph/tape.py",
    check=check,
)
