"""Packing: several examples in a row, which do not see each other."""

import numpy as np

from toynn.testing.puzzles.answer import Answer
from toynn.testing.puzzles.compare import compare
from toynn.testing.puzzles.puzzle import Puzzle

LENGTH = 8
EXAMPLES = [[11, 12, 13], [21, 22, 23, 24, 25], [31, 32], [41, 42, 43, 44], [51]]
#: What they become: two rows, of which the second has one token of padding.
IDS = [[11, 12, 13, 21, 22, 23, 24, 25], [31, 32, 41, 42, 43, 44, 51, 0]]
FIRST = [[0, 0, 0, 3, 3, 3, 3, 3], [8, 8, 10, 10, 10, 10, 14, 15]]
ENDS = [[2, 7], [1, 5, 6, 7]]


def check(answer: Answer) -> None:
    """Compare the four arrays in the order in which they are made."""
    ids, first = np.array(IDS), np.array(FIRST)
    flat = np.arange(ids.size).reshape(ids.shape)
    labels = np.roll(ids, -1, axis=1)
    crossing = labels.copy()
    crossing[:, -1] = -100
    crossing[1, 6:] = -100
    for row, ends in enumerate(ENDS):
        labels[row, ends] = -100
    got = answer.several("pack", "ids, labels, positions, first", EXAMPLES, LENGTH)
    compare("ids", got["ids"], ids)
    compare(
        "positions",
        got["positions"],
        flat - first,
        suspects={
            "positions count along the row; each example begins at 0.": flat % LENGTH,
            "positions count from 1; the first is 0.": flat - first + 1,
        },
    )
    compare(
        "first",
        got["first"],
        first,
        suspects={
            "one start for the whole row: examples see each other.": flat // LENGTH * LENGTH,
            "the column of the start; the number in the whole batch is wanted.": first
            - flat // LENGTH * LENGTH,
            "the number of the example, where its first token's number is wanted.": np.array(
                [[0] * 3 + [1] * 5, [2] * 2 + [3] * 4 + [4, 5]]
            ),
        },
    )
    compare(
        "labels",
        got["labels"],
        labels,
        suspects={
            "the last token of an example learns the first one of the next. Its label is -100.": (
                crossing
            ),
            "labels are not shifted: a token would learn itself.": np.where(ids > 0, ids, -100),
            "the label of padding, and of a last token, is -100, not 0.": np.where(
                labels == -100, 0, labels
            ),
        },
    )


PUZZLE = Puzzle(
    title="pack examples into rows",
    wanted="""\
Return ids, labels, positions and first: whole-number arrays (rows, length). Put examples side by
side into a row. An example that is longer than what is left of the row begins a new one. What is
left is padding: ids 0, labels -100, positions and first as of one more example.""",
    formula="""\
labels      the next token of the same example; -100 at its last token
positions   0, 1, 2, ... within each example
first       where the token's example begins, counted over all rows: row * length + column

length = 4, examples [5, 6], [7], [8, 9, 10]:     ids    [5, 6, 7, 0], [8, 9, 10, 0]
                                                  first  [0, 0, 2, 3], [4, 4, 4, 7]""",
    code="""
import numpy as np


def pack(examples, length):
    # >>>
    rows = [[]]
    for example in examples:
        if sum(map(len, rows[-1])) + len(example) > length:
            rows.append([])
        rows[-1].append(example)
    shape = len(rows), length
    ids, labels = np.zeros(shape, int), np.full(shape, -100)
    positions, first = np.zeros(shape, int), np.zeros(shape, int)
    for row, its in enumerate(rows):
        at = 0
        rest = [0] * (length - sum(map(len, its)))
        for example in [*its, rest]:
            end = at + len(example)
            ids[row, at:end] = example
            if example is not rest:
                labels[row, at : end - 1] = example[1:]
            positions[row, at:end] = range(len(example))
            first[row, at:end] = row * length + at
            at = end
    # ---
    ids = ...
    labels = ...
    positions = ...
    first = ...
    # <<<
    return ids, labels, positions, first
""",
    hints=(
        "First decide which examples a row has. Then fill the arrays row by row, with a number "
        "that says at which column the next example begins.",
        "An example of n tokens at column `at` fills at ... at + n - 1. Its labels are its tokens "
        "from the second on; they fill one column less.",
        "first[row, at : at + n] = row * length + at. Treat padding as an example of zeros "
        "without labels.",
    ),
    check=check,
)
