"""Packing: several examples in one row that do not see each other."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

LENGTH = 8
EXAMPLES = [[11, 12, 13], [21, 22, 23, 24, 25], [31, 32], [41, 42, 43], [51]]
#: The packed result: two rows; the second ends with two tokens of padding.
IDS = [[11, 12, 13, 21, 22, 23, 24, 25], [31, 32, 41, 42, 43, 51, 0, 0]]
FIRST = [[0, 0, 0, 3, 3, 3, 3, 3], [8, 8, 10, 10, 10, 13, 14, 14]]
ENDS = [[2, 7], [1, 4, 5, 6, 7]]


def check(answer: Answer) -> None:
    """Compare the four arrays, ids first."""
    ids, first = np.array(IDS), np.array(FIRST)
    flat = np.arange(ids.size).reshape(ids.shape)
    labels, padding = np.roll(ids, -1, axis=1), ids == 0
    crossing = labels.copy()
    crossing[:, -1] = -100
    crossing[1, 5:] = -100
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
            "padding has positions, too: 0, 1, 2, ... as one more example.": np.where(
                padding, 0, flat - first
            ),
            "positions count from 1; the first is 0.": flat - first + 1,
        },
    )
    compare(
        "first",
        got["first"],
        first,
        suspects={
            "padding has a first, too: where the padding begins.": np.where(padding, 0, first),
            "it is the column of the start; count over all rows. And padding has none here.": (
                np.where(padding, 0, first - flat // LENGTH * LENGTH)
            ),
            "one start for the whole row: examples see each other.": flat // LENGTH * LENGTH,
            "it is the column of the start; count over all rows: row * length + column.": first
            - flat // LENGTH * LENGTH,
            "the number of the example, where its first token's number is wanted.": np.array(
                [[0] * 3 + [1] * 5, [2] * 2 + [3] * 3 + [4, 5, 5]]
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
side into a row. An example that does not fit into the rest of its row begins a new row. A row's
rest is padding: ids 0, labels -100. Its positions and first are those of one more example.""",
    formula="""\
labels      the next token of the same example; -100 at its last token
positions   0, 1, 2, ... within each example
first       where the token's example begins, counted over all rows: row * length + column

length = 5, examples [5, 6], [7], [8, 9, 10]:     ids        [5, 6, 7, 0, 0], [8, 9, 10, 0, 0]
                                                  positions  [0, 1, 0, 0, 1], [0, 1, 2, 0, 1]
                                                  first      [0, 0, 2, 3, 3], [5, 5, 5, 8, 8]""",
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
    why=(
        "Why does the last token of an example learn nothing?",
        "Its label would be the next example's first token, which has nothing to do with it.",
    ),
    same="data/packing.py",
    check=check,
)
