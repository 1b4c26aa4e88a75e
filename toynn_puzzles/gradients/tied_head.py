"""One matrix as embedding and as head: its gradient has two parts."""

from typing import Any

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import Expected
from toynn_puzzles.puzzle import Puzzle


def _reference(kernel: str, **arrays: Any) -> Any:
    return KERNELS[kernel].compute(**arrays)


def check(answer: Answer) -> None:
    """Compare dw of a batch in which one id occurs twice."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((6, 4)), "ids": np.array([2, 5, 2, 0, 3])}
    w, ids = arrays["w"], arrays["ids"]
    dy = rng.standard_normal((5, 6))

    def function() -> Any:
        x = _reference("embedding.forward", w=w, ids=ids)["y"]
        return _reference("matmul.forward", x=x, w=w, b=None, activation=0)["y"]

    x = w[ids]
    head = _reference("matmul.backward_weight", dy=dy, x=x)["dw"]
    dx = _reference("matmul.backward_input", dy=dy, w=w)["dx"]
    embedding = _reference("embedding.backward", dy=dx, ids=ids, V=6)["dw"]
    once = np.zeros_like(w)
    once[ids] = dx
    lost = head.copy()
    lost[ids] += dx
    case = Expected(arrays, function, dy, {"dw": head + embedding}, {"V": 6, "N": 5})
    case.compare(
        answer.several("backward", "dw", dy, ids, w),
        dw={
            "only the head's part: w is the embedding, too.": head,
            "only the embedding's part: w is the head, too.": embedding,
            "id 2 occurs twice, and only its last row is added. `dw[ids] += ...` adds one of them: "
            "use np.add.at.": lost,
            "the embedding's part takes the place of the head's in the rows of ids.": np.where(
                np.isin(np.arange(6), ids)[:, None], once, head
            ),
        },
    )


PUZZLE = Puzzle(
    title="a tied head",
    wanted="""\
Return dw (V, C), the gradient of w, from dlogits (N, V), ids (N,) and w (V, C).
The model uses w twice: its rows are the embeddings of tokens, and the head multiplies by it.""",
    formula="""\
x[n]      = w[ids[n]]
logits[n] = w x[n]""",
    code="""
import numpy as np


def backward(dlogits, ids, w):
    x = w[ids]
    # >>>
    dw = dlogits.T @ x
    dx = dlogits @ w
    np.add.at(dw, ids, dx)
    # <<<
    return dw
""",
    hints=(
        "Think of two matrices, one for each use. w is both, so dw is the sum of both gradients.",
        "The head is a linear layer: it gives its part of dw, and dx. The embedding adds dx[n] to "
        "row ids[n].",
        "ids may name a row twice. np.add.at(dw, ids, dx) adds every time; dw[ids] += dx does not.",
    ),
    why=(
        "Which rows of dw are not 0: of the head's part, of the embedding's?",
        "Of the head's part all: each step moves every token's logit. Of the embedding's only "
        "the rows of ids.",
    ),
    same="graph/autograd.py",
    check=check,
)
