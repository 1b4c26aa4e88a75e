"""Train on preferences: the loss compares completions with each other, and with a reference.

The reference is the same model without its adapters: the same weights in another tape. Before each
step the reference is run, and for KTO also the model on mismatched completions. Their results enter
the step's tape as a few numbers a sequence. See toynn/ops/preference.py for the losses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import IGNORED, Batch
from toynn.engines import packed
from toynn.engines.recording import Model, Pass, record_losses
from toynn.errors import ConfigError, ShapeError
from toynn.graph.tape import Tensor
from toynn.options import check_fields, option, real
from toynn.system.critical import Section, exclusive

__all__ = [
    "KINDS",
    "Preference",
    "PreferenceOptions",
    "PreferencePass",
    "mismatched",
]

Kind = Literal["dpo", "orpo", "kto"]
KINDS: tuple[str, ...] = get_args(Kind)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PreferenceOptions:
    """The preference loss and its parameters, by TRL's names.

    Raises ConfigError for values out of range.

    Attributes
    ----------
    loss
        "dpo" (arXiv:2305.18290) and "orpo" (arXiv:2403.07691) for pairs, chosen and rejected;
        "kto" (arXiv:2402.01306) for single completions, wanted or unwanted.
    beta
        The factor of differences in log probability; for ORPO, the weight of the odds term.
    label_smoothing
        For DPO: the probability that a pair is labelled the wrong way round, below 0.5.
    desirable_weight, undesirable_weight
        For KTO: the weights of wanted and unwanted completions.
    """

    loss: Kind = option(default="dpo")
    beta: float = option(default=0.1, read=real(0, above=True))
    label_smoothing: float = option(default=0.0, read=real(0, 0.5, below=True))
    desirable_weight: float = option(default=1.0, read=real(0, above=True))
    undesirable_weight: float = option(default=1.0, read=real(0, above=True))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.label_smoothing and self.loss != "dpo":
            raise ConfigError(f"label_smoothing: only dpo has it; the loss is {self.loss}")

    @property
    def paired(self) -> bool:
        """Whether sequences come in pairs, chosen and rejected."""
        return self.loss != "kto"


@dataclass(frozen=True, kw_only=True)
class PreferencePass(Pass):
    """Handles of a tape of a preference loss; without a loss, of the sums alone."""

    bounds: Tensor
    sums: Tensor  # (S, 2)
    sequences: Tensor | None = None
    reference: Tensor | None = None
    kl: Tensor | None = None
    wanted: Tensor | None = None


class Preference:
    """The tapes of a preference loss over an engine's weights, and their inputs."""

    def __init__(self, engine: Model, options: PreferenceOptions) -> None:
        self.engine, self.options = engine, options
        #: figures of the last batch by TRL's names: (sum, count)
        self.figures: Mapping[str, tuple[float, float]] = {}
        self._reference = np.zeros(0, np.float32)

    def record(self, batch: int, dropout: float) -> PreferencePass:
        """Record the loss of a batch of at most ``batch`` rows of t_seq tokens."""
        s, options = self.engine.session, self.options
        given = self._record_sums(batch, dropout, adapted=True)
        S = given.sums.shape[0]
        count, hp = s.input("sequences", (), "i32"), s.input("hp", (7,))
        reference = kl = wanted = None
        if options.loss == "orpo":
            loss = ops.orpo(s, given.sums, given.bounds, count, options.beta)
        else:
            reference = s.input("reference", (S,))
        if options.loss == "dpo" and reference is not None:
            smoothing = options.label_smoothing
            loss = ops.dpo(s, given.sums, reference, count, options.beta, smoothing)
        if options.loss == "kto" and reference is not None:
            kl, wanted = s.input("kl", ()), s.input("wanted", (S,), "i32")
            weights = options.desirable_weight, options.undesirable_weight
            loss = ops.kto(s, given.sums, reference, kl, wanted, count, options.beta, weights)
        s.set_loss(loss)
        own = {"sequences": count, "reference": reference, "kl": kl, "wanted": wanted}
        return PreferencePass(**{**vars(given), **own, "hp": hp, "loss": loss})

    def _record_sums(self, batch: int, dropout: float, *, adapted: bool) -> PreferencePass:
        """Record the sums of token losses over each prompt and each completion."""
        engine, s = self.engine, self.engine.session
        N = batch * engine.t_seq
        found, losses = record_losses(engine, N, dropout, adapted=adapted)
        bounds = s.input("bounds", (2 * N + 1,), "i32")
        sums = s.output(ops.token_sums(s, losses, bounds))
        return PreferencePass(**vars(found), bounds=bounds, sums=sums)

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
        found = packed.checked(batch, self.engine.t_seq, self.engine.context)
        wanted = None if batch.wanted is None else np.asarray(batch.wanted)
        ids, bounds = np.asarray(batch.inputs), np.asarray(batch.bounds)
        return replace(found, inputs=ids, bounds=bounds, wanted=wanted)

    def inputs(self, tape: PreferencePass, given: Batch) -> dict[Tensor, ArrayLike]:
        """Return the inputs of the loss's tape, including the reference's log probabilities."""
        found, S = self._inputs(tape, given), tape.sums.shape[0]
        self._reference = np.zeros(given.examples, np.float32)
        if tape.reference is not None:
            self._reference = self.log_probabilities(given, adapted=False)
            found[tape.reference] = _room(self._reference, S)
        if tape.kl is not None and tape.wanted is not None:
            found[tape.kl] = np.array(self._divergence(given), np.float32)
            found[tape.wanted] = _room(given.wanted, S)
        if tape.sequences is not None:
            found[tape.sequences] = np.array(given.examples)
        return found

    def _inputs(self, tape: PreferencePass, given: Batch) -> dict[Tensor, ArrayLike]:
        bounds = np.full(tape.bounds.shape, given.bounds[-1], np.int32)
        bounds[: len(given.bounds)] = given.bounds
        return packed.inputs_of(tape, given) | {tape.bounds: bounds}

    def exclusively(self, call: str) -> Section:
        """Return the engine's critical section."""
        return self.engine.session.exclusively(call)

    @exclusive
    def evaluate(self, batch: Batch) -> float:
        """Return the loss of a batch, without a training step; ``means`` has more figures."""
        engine, s, given = self.engine, self.engine.session, self.checked(batch)
        rows = max(-(-given.tokens // engine.t_seq), engine.t_batch)
        tape = s.record(("preference loss", rows), lambda: self.record(rows, 0.0))
        s.feed(self.inputs(tape, given), tape.tape)
        s.run("loss", tape=tape.tape)
        self.measure(tape, given)
        assert tape.loss is not None
        return float(s.download(tape.loss))

    def means(self) -> dict[str, float]:
        """Return the means of the last batch's figures."""
        return {name: total / count for name, (total, count) in self.figures.items() if count}

    @exclusive
    def log_probabilities(self, given: Batch, *, adapted: bool) -> Floats:
        """Return log p of each completion (S,), with or without the adapters; no dropout."""
        engine, s = self.engine, self.engine.session
        batch = max(-(-given.tokens // engine.t_seq), engine.t_batch)
        tape: PreferencePass = s.record(
            ("sums", batch, adapted), lambda: self._record_sums(batch, 0.0, adapted=adapted)
        )
        s.feed(self._inputs(tape, given), tape.tape)
        s.run("loss", tape=tape.tape)
        return -s.download(tape.sums)[: given.examples, 1]

    def _divergence(self, given: Batch) -> float:
        """Return KTO's kl: the divergence of model and reference on mismatched completions.

        Each completion follows the next example's prompt. With a single example it is 0.
        """
        others = mismatched(given, self.engine.t_seq * self.engine.t_batch)
        if others is None:
            return 0.0
        model, reference = (self.log_probabilities(others, adapted=a) for a in (True, False))
        return max(0.0, float((model - reference).mean(dtype=np.float64)))

    def measure(self, tape: PreferencePass, given: Batch) -> None:
        """Store the figures of the last batch."""
        found = -self.engine.session.download(tape.sums)[: given.examples, 1].astype(np.float64)
        options = self.options
        if options.loss == "orpo":
            length = np.diff(given.bounds)[1::2]
            found = found / length
        rewards = options.beta * (found - self._reference)
        wanted = given.wanted
        good = np.arange(given.examples) % 2 == 0 if wanted is None else wanted != 0
        figures = {
            f"{what}/{which}": (float(values[part].sum()), float(part.sum()))
            for what, values in (("rewards", rewards), ("logps", found))
            for which, part in (("chosen", good), ("rejected", ~good))
        }
        if options.paired:
            margins = rewards[0::2] - rewards[1::2]
            figures["rewards/margins"] = float(margins.sum()), len(margins)
            figures["rewards/accuracies"] = float((margins > 0).sum()), len(margins)
        self.figures = figures


def mismatched(given: Batch, room: int) -> Batch | None:
    """Pair each prompt with the completion of the example before; None for a single example.

    Each sequence is cut to the length of the longest given one. Only the first sequences, those
    that fit into ``room`` tokens together, are kept.
    """
    starts = np.flatnonzero(given.segments == np.arange(len(given.inputs)))
    ends = np.append(starts[1:], len(given.inputs))
    if len(starts) < 2:
        return None
    longest = int((ends - starts).max())
    ids: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    counts = []
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        other = slice(starts[k - 1], ends[k - 1])
        first = int(np.argmax(given.labels[other] != IGNORED))  # rows before it: the prompt's
        own = int(np.argmax(given.labels[start:end] != IGNORED))
        prompt = given.inputs[start : start + own + 1]
        answer = given.labels[other][first:]
        rows = np.append(prompt, answer[:-1])[:longest]
        targets = np.append(np.full(own, IGNORED), answer)[:longest]
        if (targets != IGNORED).any():
            ids.append(rows)
            labels.append(targets)
            counts.append(int((targets != IGNORED).sum()))
    lengths = [len(rows) for rows in ids]
    keep = int(np.searchsorted(np.cumsum(lengths), room, side="right"))
    if not keep:
        return None
    lengths = lengths[:keep]
    firsts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    bounds = np.repeat(np.cumsum([0, *counts[:keep]]), 2)[:-1]
    return Batch(
        np.concatenate(ids[:keep]).astype(np.int32),
        (np.arange(len(firsts)) - firsts).astype(np.int32),
        np.concatenate(labels[:keep]).astype(np.int32),
        firsts.astype(np.int32),
        bounds.astype(np.int32),
    )


def _room(values: ArrayLike, size: int) -> NDArray[Any]:
    found = np.asarray(values)
    return np.append(found, np.zeros(size - len(found), found.dtype))
