"""Check a packed batch, and pad it to the length of a tape."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from toynn.data.batch import IGNORED, Batch
from toynn.engines.recording import Pass
from toynn.errors import ShapeError
from toynn.graph.tape import Tensor
from toynn.numerics import checks

__all__ = ["checked", "inputs_of"]


def checked(batch: Batch, t_seq: int, context: int) -> Batch:
    """Return a checked batch with segments; by default each ``t_seq`` tokens are a segment.

    Raises ShapeError or LabelError for malformed segments, and for positions that do not fit.
    """
    ids, labels = np.asarray(batch.inputs), np.asarray(batch.labels)
    size, rows = ids.shape, np.arange(ids.size)
    if labels.ndim == 2:
        raise ShapeError(f"segments: labels must be integers {size}; got {labels.shape}")
    if batch.segments is None:
        given = rows % t_seq if batch.positions is None else np.asarray(batch.positions)
        return replace(batch, positions=given, segments=rows - rows % t_seq)
    first = checks.converted("segments", batch.segments, size, "i32")
    checks.segments_within(ids.size)("segments", first)
    if ids.size > 1 and (first == rows).all():
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
        found = checks.converted("positions", batch.positions, size, "i32")
        if (found != rows - first).any():
            row = int(np.argmax(found != rows - first))
            raise ShapeError(
                f"positions: row {row} is {found[row]}; must be {row - first[row]}: positions "
                f"start at 0 in each segment, and this one begins at row {first[row]}"
            )
    labels = checks.converted("labels", labels, size, "i32")
    return replace(batch, positions=rows - first, labels=labels, segments=first)


def inputs_of(step: Pass, given: Batch) -> dict[Tensor, ArrayLike]:
    """Return a tape's inputs, padded to its length; kernels read only the valid rows."""
    assert step.segments is not None and step.count is not None and step.labels is not None
    size, room = given.tokens, step.tokens.shape[0]
    zeros = np.zeros(room - size, np.int32)
    short = positions = np.asarray(given.positions)
    more: dict[Tensor, ArrayLike] = {}
    if step.long_positions is not None and step.is_long is not None:
        _, place, lengths = np.unique(
            np.asarray(given.segments), return_inverse=True, return_counts=True
        )
        long = np.array([step.is_long(length) for length in lengths.tolist()])[place]
        short = np.where(long, 0, positions)
        more = {step.long_positions: np.append(np.where(long, positions, 0), zeros)}
    return more | {
        step.count: np.array(size),
        step.segments: np.append(given.segments, np.arange(size, room)),
        step.tokens: np.append(given.inputs, zeros),
        step.positions: np.append(short, zeros),
        step.labels: np.append(given.labels, zeros + IGNORED),
    }
