"""Check a packed batch, and pad it to the length of a tape."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from toynn.data.batch import IGNORED, Batch
from toynn.errors import ShapeError
from toynn.graph.tape import Tensor
from toynn.numerics import checks


def checked(batch: Batch, t_seq: int, context: int) -> Batch:
    """Return a checked batch with segments; by default each ``t_seq`` tokens are a segment.

    Raises ShapeError or LabelError for malformed segments, and for positions that do not fit.
    """
    ids, labels = np.asarray(batch.inputs), np.asarray(batch.labels)
    size, rows = ids.shape, np.arange(ids.size)
    if labels.ndim == 2:
        raise ShapeError(f"segments: labels must be integers {size}; got {labels.shape}")
    if batch.segments is None:
        positions = rows % t_seq if batch.positions is None else np.asarray(batch.positions)
        return replace(batch, positions=positions, segments=rows - rows % t_seq)
    first = checks.converted("segments", batch.segments, size, "i32")
    checks.segments_within(ids.size)("segments", first)
    if batch.bounds is None and ids.size > 1 and (first == rows).all():
        raise ShapeError(
            f"segments: every one of {ids.size} rows begins a segment, so no token sees "
            "another; give the first row of each token's example: 0 0 0 3 3 ..."
        )
    longest = int((rows - first).max()) + 1
    if longest > context:
        row = int(np.argmax(rows - first))
        raise ShapeError(
            f"segments: the example that begins at row {first[row]} has {longest} tokens; the "
            f"context is {context}: cut it"
        )
    if batch.positions is not None:
        positions = checks.converted("positions", batch.positions, size, "i32")
        if (positions != rows - first).any():
            row = int(np.argmax(positions != rows - first))
            raise ShapeError(
                f"positions: row {row} is {positions[row]}; must be {row - first[row]}: positions "
                f"start at 0 in each segment, and this one begins at row {first[row]}"
            )
    labels = checks.converted("labels", labels, size, "i32")
    return replace(batch, positions=rows - first, labels=labels, segments=first)


def inputs_of(
    inputs: Mapping[str, Tensor], batch: Batch, is_long: Callable[[int], bool]
) -> dict[str, ArrayLike]:
    """Return the values of a tape's inputs, padded to its length; kernels read only valid rows.

    If there are "long_positions", the tokens of an example of n tokens have these or "positions",
    as ``is_long(n)`` says; the other is 0.
    """
    room = inputs["tokens"].size
    short = positions = np.asarray(batch.positions)
    zeros = np.zeros(room - batch.tokens, np.int32)
    values: dict[str, ArrayLike] = {}
    if "long_positions" in inputs:
        _, place, lengths = np.unique(
            np.asarray(batch.segments), return_inverse=True, return_counts=True
        )
        long = np.array([is_long(length) for length in lengths.tolist()])[place]
        short = np.where(long, 0, positions)
        values["long_positions"] = np.append(np.where(long, positions, 0), zeros)
    return values | {
        "count": np.array(batch.tokens),
        "segments": np.append(batch.segments, np.arange(batch.tokens, room)),
        "tokens": np.append(batch.inputs, zeros),
        "positions": np.append(short, zeros),
        "labels": np.append(batch.labels, zeros + IGNORED),
    }
