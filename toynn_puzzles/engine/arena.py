"""Plan an arena: tensors share memory if they are never live together."""

from typing import Any

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.puzzle import Puzzle

ALIGN = 64
Tensor = tuple[int, int, int]

#: A step of a model with a few layers: gradients that live for two steps, activations
#: that live until their backward pass, and work space. Placed in the order of the list, or of
#: their first steps, they leave holes that are too large.
STEP: list[Tensor] = [
    *((n, 15 - i, 16 - i) for i, n in enumerate((300, 1500, 1500, 300, 1500, 1500, 300))),
    *((n, i, 15 - i) for i, n in enumerate((400, 1600, 1600, 400, 1600, 1600, 400))),
    *((3000, 7, 8), (100, 0, 16), (2000, 3, 5), (2000, 5, 7), (2500, 9, 10)),
]
SMALL: list[Tensor] = [(100, 0, 1), (64, 1, 2), (100, 2, 3)]


def check(answer: Answer) -> None:
    """Check for overlaps, then the size: a tenth more than the fullest step needs is allowed."""
    for tensors, what in ((SMALL, "three small tensors"), (STEP, "a training step")):
        offsets = np.asarray(answer("plan", tensors))
        compare_shape = np.zeros(len(tensors), int)
        if offsets.shape != compare_shape.shape or offsets.dtype.kind not in "iu":
            compare("the list of offsets", offsets, compare_shape)
        where = f", with {what}"
        for i, (offset, (_, first, last)) in enumerate(zip(offsets, tensors, strict=True)):
            if offset < 0 or offset % ALIGN:
                fail(
                    f"tensor {i} is at byte {offset}{where}; offsets are multiples of {ALIGN}.",
                    "round each size up to a multiple of 64 before you place the next tensor.",
                )
            for k in range(i):
                if _overlap(tensors[i], int(offset), tensors[k], int(offsets[k])):
                    _, begin, end = tensors[k]
                    shared = (max(first, begin), min(last, end))
                    fail(
                        f"tensors {k} and {i} overlap{where}: {_told(tensors[k], offsets[k])} and "
                        f"{_told(tensors[i], offset)}. Both are live in step {shared[0]}.",
                        "a tensor is still live in its last step: `last` belongs to it."
                        if shared[0] == shared[1]
                        else "",
                    )
        size = max(int(o) + n for o, (n, _, _) in zip(offsets, tensors, strict=True))
        together = sum(_rounded(n) for n, _, _ in tensors)
        steps = range(1 + max(last for _, _, last in tensors))
        fullest = max(steps, key=lambda step: _live(tensors, step))
        most = _live(tensors, fullest) * 11 // 10
        if size > most:
            fail(
                f"the arena takes {size} bytes{where}. In step {fullest}, the fullest, tensors of "
                f"{_live(tensors, fullest)} bytes are live. With a tenth more, {most} are allowed.",
                "no memory is used twice."
                if size >= together - ALIGN
                else "holes: place large tensors first, each at the lowest offset that is free.",
            )


def _rounded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _live(tensors: list[Tensor], step: int) -> int:
    return sum(_rounded(n) for n, first, last in tensors if first <= step <= last)


def _overlap(one: Tensor, at: int, other: Tensor, there: int) -> bool:
    live = one[1] <= other[2] and other[1] <= one[2]
    return live and at < there + other[0] and there < at + one[0]


def _told(tensor: Tensor, offset: Any) -> str:
    n, first, last = tensor
    return f"bytes {offset} to {offset + n}, steps {first} to {last}"


PUZZLE = Puzzle(
    title="plan an arena",
    wanted="""\
Return a list of byte offsets, one for each tensor: (bytes, first, last), live from step first
to step last, both included. Tensors that are live in the same step must not overlap.
Offsets are multiples of 64. The arena may be a tenth larger than what its fullest step needs.""",
    formula="""\
plan([(100, 0, 1), (64, 1, 2), (100, 2, 3)]) may return [0, 128, 0]
         the first and the third are never live together
the fullest step is the one whose live tensors take the most bytes (in multiples of 64)""",
    code="""
def plan(tensors):
    offsets = [0] * len(tensors)
    # >>>
    placed = []
    for i in sorted(range(len(tensors)), key=lambda i: -tensors[i][0]):
        size, first, last = tensors[i]
        offset = 0
        for k in sorted(placed, key=lambda k: offsets[k]):
            other, begin, end = tensors[k]
            if first <= end and begin <= last:
                if offsets[k] - offset >= size:
                    break
                offset = max(offset, offsets[k] + -(-other // 64) * 64)
        offsets[i] = offset
        placed.append(i)
    # ---
    # your code
    # <<<
    return offsets
""",
    hints=(
        "Place one tensor after another. For each, look only at the placed tensors that are live "
        "together with it: first <= their last, and their first <= last.",
        "Sort those tensors by offset and walk upward. Take the first gap that is large enough, "
        "else the end of the last one. Round ends up to multiples of 64: -(-n // 64) * 64.",
        "The order decides about holes. Place the largest tensors first.",
    ),
    why=(
        "Why place the largest tensors first?",
        "A small tensor fits into a gap that a large one leaves. A large tensor does not fit "
        "between small ones.",
    ),
    same="graph/planner.py",
    check=check,
)
