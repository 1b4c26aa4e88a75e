"""Train on preferences: the loss compares completions with each other, and with a reference.

The reference is the same model without its adapters: the same weights in another tape. Before each
step the reference is run, and for KTO also the model on mismatched completions. Their results enter
the step's tape as a few numbers a sequence. See toynn/ops/preference.py for the losses.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import IGNORED, Batch
from toynn.engines import packed
from toynn.engines.engine import Inputs, Recorded
from toynn.engines.objectives import PreferenceOptions
from toynn.errors import ShapeError
from toynn.graph.tape import Tape, Tensor

Floats = NDArray[np.float32]


class Preference:
    """The tapes of a preference loss over a SequenceEngine's weights, and their inputs."""

    def __init__(self, engine: Any, options: PreferenceOptions) -> None:
        self.engine, self.options = engine, options
        #: figures of the last batch by TRL's names: (sum, count)
        self.figures: Mapping[str, tuple[float, float]] = {}
        self._reference = np.zeros(0, np.float32)

    def record(self, batch: int, *, train: bool) -> Recorded:
        """Record the loss of a batch of at most ``batch`` rows of t_seq tokens."""
        s, options = self.engine.session, self.options
        sums, bounds = self._record_sums(batch, train=train)
        S = sums.shape[0]
        count = s.input("sequences", (), "i32")
        s.input("hp", (7,))
        if options.loss == "orpo":
            loss = ops.orpo(s, sums, bounds, count, options.beta)
        else:
            reference = s.input("reference", (S,))
        if options.loss == "dpo":
            loss = ops.dpo(s, sums, reference, count, options.beta, options.label_smoothing)
        elif options.loss == "kto":
            kl, wanted = s.input("kl", ()), s.input("wanted", (S,), "i32")
            weights = options.desirable_weight, options.undesirable_weight
            loss = ops.kto(s, sums, reference, kl, wanted, count, options.beta, weights)
        s.set_loss(loss)
        return Recorded(tape=s.tape, loss=loss, sums=sums)

    def _record_sums(
        self, batch: int, *, train: bool = False, adapted: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Record the sums of token losses over each prompt and each completion; return bounds too.

        Without ``adapted`` they are those of the reference.
        """
        engine, s = self.engine, self.engine.session
        layers, x, labels = engine.record_labelled(batch, packed=True, adapted=adapted, train=train)
        logits = engine.model.logits(layers, engine.config, engine.options, x)
        losses = ops.token_losses(s, logits, labels)
        bounds = s.input("bounds", (2 * batch * engine.t_seq + 1,), "i32")
        return s.output(ops.token_sums(s, losses, bounds)), bounds

    def checked(self, batch: Batch) -> Batch:
        """Return a batch as arrays. Raises ShapeError unless it fits the loss."""
        if batch.segments is None or batch.bounds is None:
            raise ShapeError("preferences: a batch needs segments and bounds")
        if self.options.paired and batch.examples % 2:
            raise ShapeError(f"preferences: {batch.examples} sequences are not pairs")
        if (batch.wanted is None) != self.options.paired:
            raise ShapeError(
                f"preferences: {self.options.loss} needs "
                f"{'pairs' if self.options.paired else 'labelled completions'}; got the other kind"
            )
        wanted = None if batch.wanted is None else np.asarray(batch.wanted)
        ids, bounds = np.asarray(batch.inputs), np.asarray(batch.bounds)
        batch = packed.checked(batch, self.engine.t_seq, self.engine.context)
        return replace(batch, inputs=ids, bounds=bounds, wanted=wanted)

    def inputs(self, step: Recorded, batch: Batch) -> Inputs:
        """Return the inputs of the loss's tape, including the reference's log probabilities."""
        values, inputs = self._inputs(step.tape, batch), step.tape.inputs
        S = inputs["bounds"].size // 2
        values["sequences"] = np.array(batch.examples)
        self._reference = np.zeros(batch.examples, np.float32)
        if "reference" in inputs:
            self._reference = self.log_probabilities(batch, adapted=False)
            values["reference"] = _padded(self._reference, S)
        if "kl" in inputs:
            values["kl"] = np.array(self._divergence(batch), np.float32)
            values["wanted"] = _padded(batch.wanted, S)
        return values

    def _inputs(self, tape: Tape, batch: Batch) -> Inputs:
        bounds = np.full(tape.inputs["bounds"].shape, batch.bounds[-1], np.int32)
        bounds[: len(batch.bounds)] = batch.bounds
        return packed.inputs_of(tape.inputs, batch, self.engine.is_long) | {"bounds": bounds}

    def evaluate(self, batch: Batch) -> float:
        """Return the loss of a batch, without a training step; ``means`` has more figures."""
        engine, batch = self.engine, self.checked(batch)
        rows = engine.batch_of(batch)
        with engine.session.exclusively("evaluate()"):
            step = engine.session.record(
                ("preference loss", rows), lambda: self.record(rows, train=False)
            )
            loss = float(engine.compute(step, self.inputs(step, batch), "loss"))
            self.measure(step, batch)
        return loss

    def means(self) -> dict[str, float]:
        """Return the means of the last batch's figures."""
        return {name: total / count for name, (total, count) in self.figures.items() if count}

    def log_probabilities(self, batch: Batch, *, adapted: bool) -> Floats:
        """Return log p of each completion (S,), with or without the adapters; no dropout."""
        engine, s = self.engine, self.engine.session
        rows, S = engine.batch_of(batch), batch.examples

        def record() -> Recorded:
            return Recorded(tape=s.tape, sums=self._record_sums(rows, adapted=adapted)[0])

        recorded = s.record(("sums", rows, adapted), record)
        sums: Floats = engine.compute(recorded, self._inputs(recorded.tape, batch), "sums")
        return -sums[:S, 1]

    def _divergence(self, batch: Batch) -> float:
        """Return KTO's kl: the divergence of model and reference on mismatched completions.

        Each completion follows the next example's prompt. With a single example it is 0.
        """
        others = mismatched(batch, self.engine.t_seq * self.engine.t_batch)
        if others is None:
            return 0.0
        model, reference = (self.log_probabilities(others, adapted=a) for a in (True, False))
        return max(0.0, float((model - reference).mean(dtype=np.float64)))

    def measure(self, step: Recorded, batch: Batch) -> None:
        """Store the figures of the last batch."""
        assert step.sums is not None
        sums, options = self.engine.session.download(step.sums), self.options
        logps = -sums[: batch.examples, 1].astype(np.float64)
        if options.loss == "orpo":
            logps /= np.diff(batch.bounds)[1::2]
        rewards = options.beta * (logps - self._reference)
        wanted = batch.wanted
        good = np.arange(batch.examples) % 2 == 0 if wanted is None else wanted != 0
        figures = {
            f"{what}/{which}": (float(values[part].sum()), float(part.sum()))
            for what, values in (("rewards", rewards), ("logps", logps))
            for which, part in (("chosen", good), ("rejected", ~good))
        }
        if options.paired:
            margins = rewards[0::2] - rewards[1::2]
            figures["rewards/margins"] = float(margins.sum()), len(margins)
            figures["rewards/accuracies"] = float((margins > 0).sum()), len(margins)
        self.figures = figures


def mismatched(batch: Batch, room: int) -> Batch | None:
    """Pair each prompt with the completion of the example before; None for a single example.

    Each sequence is cut to the length of the longest one in the batch. Only the first sequences,
    those that fit into ``room`` tokens together, are kept.
    """
    starts = np.flatnonzero(batch.segments == np.arange(batch.tokens))
    ends = np.append(starts[1:], batch.tokens)
    if len(starts) < 2:
        return None
    longest = int((ends - starts).max())
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []  # ids and labels of a sequence
    size = 0
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        before = batch.labels[starts[k - 1] : ends[k - 1]]
        answer = before[np.argmax(before != IGNORED) :]  # without the rows of its prompt
        prompt = int(np.argmax(batch.labels[start:end] != IGNORED))  # rows without loss
        ids = np.append(batch.inputs[start : start + prompt + 1], answer[:-1])[:longest]
        labels = np.append(np.full(prompt, IGNORED), answer)[:longest]
        if (labels != IGNORED).any():
            size += len(ids)
            if size > room:
                break
            pairs.append((ids, labels))
    if not pairs:
        return None
    lengths = [len(ids) for ids, _ in pairs]
    firsts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    ids, labels = map(np.concatenate, zip(*pairs, strict=True))
    counts = [int((one != IGNORED).sum()) for _, one in pairs]
    bounds = np.repeat(np.cumsum([0, *counts]), 2)[:-1]
    arrays = (ids, np.arange(len(firsts)) - firsts, labels, firsts, bounds)
    return Batch(*(array.astype(np.int32) for array in arrays))


def _padded(values: ArrayLike, size: int) -> NDArray[Any]:
    array = np.asarray(values)
    return np.append(array, np.zeros(size - len(array), array.dtype))
