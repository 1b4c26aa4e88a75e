"""Training on preferences: the loss of completions against one another, and against a reference.

The reference is the same model without its adapters: the same weights, another tape over them. It,
and, for KTO, what the model makes of mismatched completions, is computed before each step and comes
into the step's tape as a few numbers a sequence. See toynn/ops/preference.py for the losses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.engines import recording
from toynn.engines.packed import Packed
from toynn.engines.recording import Pass, record_losses
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.graph.tape import Tensor
from toynn.numerics.checks import IGNORED
from toynn.options import option, real
from toynn.system.critical import uninterrupted

__all__ = [
    "KINDS",
    "Preference",
    "PreferenceDoors",
    "PreferenceOptions",
    "PreferencePass",
    "Sequences",
    "mismatched",
]

Kind = Literal["dpo", "orpo", "kto"]
KINDS: tuple[str, ...] = get_args(Kind)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PreferenceOptions:
    """What is made of the log probabilities of completions, by TRL's names.

    Raises ConfigError for values out of range.

    Attributes
    ----------
    loss
        "dpo" (arXiv:2305.18290) and "orpo" (arXiv:2403.07691) of pairs, chosen and rejected;
        "kto" (arXiv:2402.01306) of single completions that are wanted or not.
    beta
        How much a difference in log probability counts; of ORPO the weight of the odds.
    label_smoothing
        Of DPO: the probability that a pair is the wrong way round, below 0.5.
    desirable_weight, undesirable_weight
        Of KTO: of completions that are wanted, and that are not.
    """

    GROUP: ClassVar[str] = "preferences"

    loss: Kind = option(
        "sft learns what is in the data; dpo, orpo: the chosen rather than the rejected of lines "
        "with prompt, chosen, rejected; kto: of lines with prompt, completion, label, what is "
        "labelled true (default {default})",
        "dpo",
        given="sft",
        choices=("sft", *KINDS),
    )
    beta: float = option(
        "how much preferences count (default {default:g})",
        0.1,
        read=real(0, above=True),
    )
    label_smoothing: float = option(
        "of dpo: the share of pairs that are the wrong way round (default {default:g})",
        0.0,
        read=real(0, 0.49),
    )
    desirable_weight: float = option(
        "of kto: the weight of completions labelled true (default {default:g})",
        1.0,
        read=real(0, above=True),
    )
    undesirable_weight: float = option(
        "of kto: the weight of the others (default {default:g})",
        1.0,
        read=real(0, above=True),
    )

    def __post_init__(self) -> None:
        if self.loss not in KINDS:
            raise ConfigError(f"loss must be one of {', '.join(KINDS)}; got {self.loss!r}")
        for name in ("beta", "desirable_weight", "undesirable_weight"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a finite number above 0; got {value}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(
                f"label_smoothing must be at least 0 and below 0.5; got {self.label_smoothing}"
            )
        if self.label_smoothing and self.loss != "dpo":
            raise ConfigError(f"label_smoothing is of dpo; the loss is {self.loss}")

    @property
    def paired(self) -> bool:
        """Whether sequences come in pairs, chosen and rejected."""
        return self.loss != "kto"


@dataclass(frozen=True, kw_only=True)
class PreferencePass(Pass):
    """Handles of a tape of preferences, or, without a loss, of the sums of completions alone."""

    bounds: Tensor
    sums: Tensor  # (S, 2)
    sequences: Tensor | None = None
    reference: Tensor | None = None
    kl: Tensor | None = None
    wanted: Tensor | None = None


@dataclass(frozen=True)
class Sequences:
    """Examples one behind another, of which prompts and completions are told apart.

    Attributes
    ----------
    ids, positions, labels, segments
        As of a packed batch; labels are those of completions, and of prompts that are learned.
    bounds
        Of the rows whose label counts, in order: where each sequence's prompt and completion begin,
        and the last one ends (2 S + 1,).
    wanted
        Of KTO: 1 for each sequence that is wanted, 0 for the others (S,); of pairs None.
    """

    ids: NDArray[Any]
    positions: NDArray[Any]
    labels: NDArray[Any]
    segments: NDArray[Any]
    bounds: NDArray[Any]
    wanted: NDArray[Any] | None = None

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return len(self.bounds) // 2


class Model(recording.Model, Protocol):
    """What is asked of an engine."""

    t_batch: int
    context: int


class Preference:
    """The tapes of preferences over an engine's weights, and the feeding of them."""

    def __init__(self, engine: Model, options: PreferenceOptions) -> None:
        self.engine, self.options = engine, options
        #: figures of the last batch by TRL's names: (sum, how many)
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
        """Record the sums of token losses over prompts and completions."""
        engine, s = self.engine, self.engine.session
        N = batch * engine.t_seq
        found, losses = record_losses(engine, N, dropout, adapted=adapted)
        bounds = s.input("bounds", (2 * N + 1,), "i32")
        sums = s.output(ops.token_sums(s, losses, bounds))
        return PreferencePass(**vars(found), bounds=bounds, sums=sums)

    def feed(self, tape: PreferencePass, given: Sequences, step: int, *, train: bool) -> None:
        """Upload a batch to the tape of its loss, and what the reference makes of it.

        Raises ShapeError for pairs that are none.
        """
        s, S = self.engine.session, tape.sums.shape[0]
        if self.options.paired and given.count % 2:
            raise ShapeError(f"preferences: {given.count} sequences are not pairs")
        if (given.wanted is None) != self.options.paired:
            raise ShapeError(
                f"preferences: {self.options.loss} is of "
                f"{'pairs' if self.options.paired else 'completions that are wanted or not'}"
            )
        self._reference = np.zeros(given.count, np.float32)
        if tape.reference is not None:
            self._reference = self.log_probabilities(given, adapted=False)
            s.upload(tape.reference, _room(self._reference, S))
        if tape.kl is not None and tape.wanted is not None and given.wanted is not None:
            s.upload(tape.kl, self._divergence(given))
            s.upload(tape.wanted, _room(given.wanted, S))
        if tape.sequences is not None:
            s.upload(tape.sequences, given.count)
        self._upload(tape, given, step, train=train)

    def log_probabilities(self, given: Sequences, *, adapted: bool) -> Floats:
        """Return log p of each completion (S,), with the adapters or without, and no dropout."""
        engine, s = self.engine, self.engine.session
        batch = max(-(-len(given.ids) // engine.t_seq), engine.t_batch)
        tape: PreferencePass = s.record(
            ("sums", batch, adapted), lambda: self._record_sums(batch, 0.0, adapted=adapted)
        )
        self._upload(tape, given, 0, train=False)
        s.run("loss", tape=tape.tape)
        return -s.download(tape.sums)[: given.count, 1]

    def _upload(self, tape: PreferencePass, given: Sequences, step: int, *, train: bool) -> None:
        engine, s = self.engine, self.engine.session
        packed = Packed.of(
            given.ids, given.positions, given.labels, given.segments, engine.t_seq, engine.context
        )
        assert tape.count is not None and tape.segments is not None and tape.labels is not None
        s.upload(tape.count, len(given.ids))
        ids, positions, labels, segments = packed.padded(tape.tokens.shape[0])
        s.upload(tape.segments, segments)
        s.upload(tape.tokens, ids)
        s.upload(tape.positions, positions)
        s.upload(tape.labels, labels)
        bounds = np.full(tape.bounds.shape, given.bounds[-1], np.int32)
        bounds[: len(given.bounds)] = given.bounds
        s.upload(tape.bounds, bounds)
        if tape.dropout is not None:
            s.upload(tape.dropout, np.array([step, train], np.int32))

    def _divergence(self, given: Sequences) -> float:
        """Return KTO's kl: how far model and reference are, on completions of other prompts.

        The completion of each example stands behind the next one's prompt. An only example has no
        other: 0.
        """
        others = mismatched(given, self.engine.t_seq * self.engine.t_batch)
        if others is None:
            return 0.0
        model, reference = (self.log_probabilities(others, adapted=a) for a in (True, False))
        return max(0.0, float((model - reference).mean(dtype=np.float64)))

    def measured(self, tape: PreferencePass, given: Sequences) -> None:
        """Take down the figures of the batch that was run last."""
        found = -self.engine.session.download(tape.sums)[: given.count, 1].astype(np.float64)
        options = self.options
        if options.loss == "orpo":
            length = np.diff(given.bounds)[1::2]
            found = found / length
        rewards = options.beta * (found - self._reference)
        wanted = given.wanted
        good = np.arange(given.count) % 2 == 0 if wanted is None else wanted != 0
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


class PreferenceDoors:
    """Doors of an engine to training on preferences; asked for before the step is recorded.

    Raises LifecycleError without ``enable_preference``.
    """

    preference: Preference | None = None
    batches: int
    t_seq: int
    t_batch: int

    def enable_preference(self, options: PreferenceOptions) -> None:
        """Ask for a loss of preferences; comes before ``build_training_step``."""
        self.preference = Preference(self, options)  # type: ignore[arg-type]

    def step_preference(self, given: Sequences, hp: ArrayLike, is_first: bool) -> float:
        """Train on one batch; return its loss before the update. See ``SequenceEngine.step``."""
        return self._run(given, "train", hp, is_first)

    def accumulate_preference(self, given: Sequences) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        return self._run(given, "add")

    def evaluate_preference(self, given: Sequences) -> float:
        """Return the loss of one batch; no gradient and no moment is touched."""
        return self._run(given, "evaluate")

    @uninterrupted
    def _run(
        self, given: Sequences, what: str, hp: ArrayLike | None = None, is_first: bool = False
    ) -> float:
        """Feed a batch and run it. Raises LifecycleError without ``enable_preference``."""
        engine: Any = self
        if self.preference is None:
            raise LifecycleError(f"{type(self).__name__}: before enable_preference()")
        main = engine._check_built("step_preference")
        batch = max(-(-len(given.ids) // self.t_seq), self.t_batch)
        tape = main if batch == self.t_batch else self._wider(batch)
        self.preference.feed(tape, given, self.batches, train=what != "evaluate")
        weight = float(given.count // 2 if given.wanted is None else given.count)
        if what == "evaluate":
            loss = engine._evaluate(tape)
        else:
            self.batches += 1
            if hp is not None:
                engine.session.feed(engine._rows_of_adamw(tape, hp), tape.tape)
                loss = engine._train(tape, weight, is_first)
            else:
                loss = engine._add_gradients(tape, weight)
        self.preference.measured(tape, given)
        return float(loss)

    def _wider(self, batch: int) -> PreferencePass:
        """Return a training step with room for so many rows."""
        engine: Any = self

        def build() -> PreferencePass:
            step: PreferencePass = engine._record_preference(batch)
            return engine._record_update(step)  # type: ignore[no-any-return]

        found: PreferencePass = engine.session.record(("preference", batch), build)
        return found


def mismatched(given: Sequences, room: int) -> Sequences | None:
    """Return each prompt with the completion of the sequence before; None if there is only one.

    What exceeds ``room`` tokens, of all, or the longest sequence there was, of each, is cut off.
    """
    starts = np.flatnonzero(given.segments == np.arange(len(given.ids)))
    ends = np.append(starts[1:], len(given.ids))
    if len(starts) < 2:
        return None
    longest = int((ends - starts).max())
    ids: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    counts = []
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        other = slice(starts[k - 1], ends[k - 1])
        first = int(np.argmax(given.labels[other] != IGNORED))  # rows up to here are the prompt's
        own = int(np.argmax(given.labels[start:end] != IGNORED))
        prompt = given.ids[start : start + own + 1]
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
    return Sequences(
        np.concatenate(ids[:keep]).astype(np.int32),
        (np.arange(len(firsts)) - firsts).astype(np.int32),
        np.concatenate(labels[:keep]).astype(np.int32),
        firsts.astype(np.int32),
        bounds.astype(np.int32),
    )


def _room(values: ArrayLike, size: int) -> NDArray[Any]:
    found = np.asarray(values)
    return np.append(found, np.zeros(size - len(found), found.dtype))
