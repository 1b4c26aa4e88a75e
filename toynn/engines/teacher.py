"""A teacher: what a frozen model with the same tokenizer says of a batch's tokens with loss.

It names the k most likely tokens of each row, and the probability of all others together. Its
blocks run over the whole batch, its head over few rows at a time, so logits are never all in
memory.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn import ops
from toynn.data.batch import IGNORED, Batch
from toynn.data.taught import Taught
from toynn.engines import packed
from toynn.engines.engine import Inputs, Recorded
from toynn.errors import ShapeError
from toynn.graph.tape import Tensor
from toynn.options import RecipeOptions
from toynn.session import Session

LOGITS = 64 << 20  # bytes of logits at a time
FEW = 32  # rows that NumPy looks at: larger temporary arrays are mapped, and zeroed, each time

Floats = NDArray[np.float32]


def likeliest(logits: Floats, k: int) -> Taught:
    """Return the k likeliest tokens of rows of logits (n, V); all of them if V is at most k."""
    n, V = logits.shape
    k = min(k, V)
    top = np.arange(V)[None].repeat(n, 0)
    if k < V:
        top = np.sort(np.argpartition(logits, V - k, axis=1)[:, V - k :], axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    named = np.take_along_axis(shifted, top, axis=1).astype(np.float64)
    others = np.exp(shifted)
    np.put_along_axis(others, top, 0, axis=1)
    rest = others.sum(axis=1, dtype=np.float64)
    total = np.log(np.exp(named).sum(axis=1) + rest)
    with np.errstate(divide="ignore"):  # no token is left
        log_rest = np.log(rest) - total
    log_p = named - total[:, None]
    return Taught(top.astype(np.int32), log_p.astype(np.float32), log_rest.astype(np.float32))


class Teacher:
    """A frozen engine that says what it expects of each row with loss.

    ``vocab``: the tokens of the tokenizer; a model may have more rows than that.
    """

    def __init__(
        self, engine: Any, vocab: int, k: int, temperature: float = 1.0, weight: float = 1.0
    ) -> None:
        self.engine, self.vocab, self.k = engine, vocab, k
        self.temperature, self.weight = temperature, weight

    @property
    def path(self) -> Any:
        """The file of the model."""
        return self.engine.file.path

    def __call__(self, batch: Batch) -> Taught:
        """Return what the teacher says of the rows with loss, in the order of the labels.

        Raises ShapeError for a batch that the engine does not take, and what ``check_unchanged``
        of the engine raises.
        """
        parts = [likeliest(few, self.k)[:3] for few in self._logits(batch)]
        ids, log_p, log_rest = map(np.concatenate, zip(*parts, strict=True))
        return Taught(ids, log_p, log_rest, self.weight)

    def log_p(self, batch: Batch) -> NDArray[np.float64]:
        """Return the log probability (n,) of each label with loss. Raises as a call does."""
        labels, parts = batch.labels[batch.labels != IGNORED], []
        for few in self._logits(Batch(*batch)):  # a PolicyBatch has other rows
            own, labels = labels[: len(few)], labels[len(few) :]
            few -= few.max(axis=1, keepdims=True)
            totals = np.exp(few).sum(axis=1, dtype=np.float64)
            parts.append(few[np.arange(len(few)), own] - np.log(totals))
        return np.concatenate(parts)

    def _logits(self, batch: Batch) -> Iterator[Floats]:
        """Yield the logits of the rows with loss, over the temperature, FEW rows at a time."""
        engine = self.engine
        batch = packed.checked(batch, engine.t_seq, engine.context)
        blocks = engine.session.record(
            ("teacher", size := engine.batch_of(batch)), lambda: self._record_blocks(size)
        )
        values = packed.inputs_of(blocks.tape.inputs, batch, engine.is_long)
        x = engine.compute(blocks, values)[: batch.rows]
        rows = min(len(x), max(1, LOGITS // (4 * engine.vocab)))
        head = engine.session.record(("teacher's head", rows), lambda: self._record_head(rows))
        for first in range(0, len(x), rows):
            some = x[first : first + rows]
            padded = np.concatenate([some, np.zeros((rows - len(some), x.shape[1]), x.dtype)])
            logits = engine.compute(head, {"x": padded, "count": np.array(len(some))})
            for at in range(0, len(some), FEW):
                few = logits[at : min(at + FEW, len(some)), : self.vocab]
                yield few / np.float32(self.temperature)
        engine.check_unchanged()

    def _record_blocks(self, batch: int) -> Recorded:
        s = self.engine.session
        _, x, _ = self.engine.record_labelled(batch, packed=True, train=False)
        return Recorded(tape=s.tape, logits=s.output(x))

    def _record_head(self, rows: int) -> Recorded:
        engine, s = self.engine, self.engine.session
        x = s.input("x", (rows, engine.d_model), count=s.input("count", (), "i32"))
        logits = engine.model.logits(engine.layers(1), engine.config, engine.options, x)
        return Recorded(tape=s.tape, logits=s.output(logits))


def recorded(s: Session, rows: int, vocab: int, options: RecipeOptions) -> ops.Teacher | None:
    """Record the inputs that a student's tape has for ``rows`` rows; None without a teacher."""
    if not options.teacher_top_k:
        return None
    k = min(options.teacher_top_k, vocab)
    return ops.Teacher(
        s.input("teacher_ids", (rows, k), "i32"),
        s.input("teacher_log_p", (rows, k)),
        s.input("teacher_log_rest", (rows,)),
        s.input("teacher_weight", ()),
        options.teacher_beta,
        options.teacher_temperature,
    )


def inputs_of(inputs: Mapping[str, Tensor], batch: Batch) -> Inputs:
    """Return the values of such inputs for a checked batch; without a teacher its weight is 0.

    Raises ShapeError for a teacher whose rows or tokens are not those that the tape takes.
    """
    if "teacher_ids" not in inputs:
        if batch.teacher is not None:
            raise ShapeError("step: the batch has a teacher; realize with teacher_top_k above 0")
        return {}
    rows, k = inputs["teacher_ids"].shape
    ids, log_p, log_rest = np.zeros((rows, k), np.int32), np.zeros((rows, k)), np.zeros(rows)
    weight = 0.0
    if batch.teacher is not None:
        taught = batch.teacher(batch)
        n, weight = batch.rows, taught.weight
        if taught.ids.shape != (n, k):
            raise ShapeError(f"teacher: expected ids ({n}, {k}); got {taught.ids.shape}")
        ids[:n], log_p[:n], log_rest[:n] = taught[:3]
    return {
        "teacher_ids": ids,
        "teacher_log_p": log_p,
        "teacher_log_rest": log_rest,
        "teacher_weight": np.array(weight),
    }
