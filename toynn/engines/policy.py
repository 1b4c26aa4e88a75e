"""Learn from rewards: the policy loss of GRPO and its relatives, over the tokens of samples.

    w = log p - log p_old                       of a token, or the mean over its sample
    L = -min(e^w A, clip(e^w, 1 - epsilon, 1 + epsilon_high) A)  +  beta (e^r - r - 1)

with A the advantage of the sample, or of the token, and r = log p_reference - log p. The reference
is the model without its adapters. The loss of a few thousand tokens is arithmetic of float64
between the forward and the backward pass: a node of NumPy.
Source: Shao et al. 2024, arXiv:2402.03300; names, defaults and reductions are those of TRL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from toynn import ops
from toynn.data.batch import Batch
from toynn.data.examples import Example, joined
from toynn.engines import packed
from toynn.engines.engine import Inputs, Recorded
from toynn.engines.objectives import PolicyOptions
from toynn.errors import ShapeError
from toynn.graph.tape import Tensor

Doubles = NDArray[np.float64]
Scale = Literal["group", "batch", "none"]
STEADY, FLAT = 1e-4, 1e-8  # added to standard deviations; a lower one is 0


@dataclass
class Sample:
    """A completion to learn from.

    ``advantage`` is that of the sample, or of each token. ``share`` is the weight of each of its
    tokens in the loss. ``sampled`` are the log probabilities
    of its n tokens when they were drawn, ``old`` those by which the ratio is 1; None: those of the
    next forward pass, which stores them.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    advantage: float | Sequence[float]
    share: float
    sampled: Sequence[float]
    old: list[float] | None = None


@dataclass(eq=False)
class PolicyBatch(Batch):
    """Samples as one packed batch; ``weight`` is its weight among the batches of an update."""

    samples: Sequence[Sample] = field(default=(), kw_only=True)
    weight: float = field(default=1.0, kw_only=True)

    @classmethod
    def with_samples(cls, samples: Sequence[Sample], weight: float) -> Self:
        """Return a batch of samples."""
        whole = joined((Example.completed(each.prompt, each.tokens) for each in samples), 0)
        return cls(*whole, samples=samples, weight=weight)

    @property
    def rows(self) -> float:  # type: ignore[override]
        """Its weight among the batches of an update."""
        return self.weight


def advantages(rewards: Doubles, group: int, scale: Scale) -> tuple[Doubles, Doubles]:
    """Return the advantages (S,) of samples by their rewards, and each group's deviation.

        A = (r - mean r) / (std r + 1e-4)

    The mean is that of the ``group`` samples of a prompt; the sample standard deviation is that of
    the group or of the batch, and "none" does not divide. A missing reward, NaN, has an advantage
    of 0, and is no part of means. So has the only reward of a group.
    """
    present = ~np.isnan(rewards)
    r, here = (each.reshape(-1, group) for each in (np.where(present, rewards, 0.0), present))
    n = here.sum(1, keepdims=True)
    off = np.where(here & (n > 1), r - r.sum(1, keepdims=True) / np.maximum(n, 1), 0.0)
    stds = np.sqrt((off**2).sum(1, keepdims=True) / np.maximum(n - 1, 1))
    off, stds = (np.where(stds < FLAT, 0.0, each) for each in (off, stds))
    by = stds if scale == "group" else np.zeros(1)
    if scale == "batch" and present.sum() > 1:
        by = np.std(rewards[present], ddof=1, keepdims=True)
    return (off / (1 if scale == "none" else by + STEADY)).ravel(), stds.ravel()


def shares(
    lengths: Sequence[int], counted: NDArray[np.bool_], options: PolicyOptions
) -> tuple[Doubles, float]:
    """Return the share of a token of each sample (S,) in a batch's loss, and the batch's weight.

    lengths (S,): tokens; ``counted`` (S,): whether a sample has loss.
    """
    n = np.asarray(lengths, np.float64)
    if options.loss_type == "grpo":
        each, weight = 1 / (len(n) * n), float(len(n))
    elif options.loss_type == "dr_grpo":
        each = np.full(len(n), 1 / (len(n) * options.max_completion_length))
        weight = float(len(n))
    else:
        tokens = max(1.0, float(n[counted].sum()))
        each, weight = np.full(len(n), 1 / tokens), tokens if options.loss_type == "dapo" else 1.0
    return each * counted, weight


def policy_loss(
    logp: Doubles,
    old: Doubles,
    samples: Sequence[Sample],
    options: PolicyOptions,
    reference: Doubles | None = None,
) -> tuple[float, Doubles, dict[str, tuple[float, float]]]:
    """Return the loss, its gradient by logp (n,), and figures as (sum, count).

    logp, old and reference (n,) are log probabilities of all samples' tokens in turn.
    """
    lengths = [len(each.tokens) for each in samples]
    A = np.concatenate([np.broadcast_to(s.advantage, len(s.tokens)) for s in samples])
    share, count = np.repeat([each.share for each in samples], lengths), np.repeat(lengths, lengths)
    by_sample = np.repeat(np.arange(len(samples)), lengths)
    whole = options.importance_sampling_level == "sequence"

    def mean(values: Doubles) -> Doubles:  # over the tokens of a sample
        means: Doubles = np.bincount(by_sample, values, len(samples))[by_sample] / count
        return means

    w = mean(logp - old) if whole else logp - old
    high = options.epsilon if options.epsilon_high is None else options.epsilon_high
    ratio = np.exp(w)
    clipped = np.clip(ratio, 1 - options.epsilon, 1 + high)
    capped = ratio if options.delta is None else np.minimum(ratio, options.delta)
    loss = -np.minimum(capped * A, clipped * A)
    moves = (capped * A <= clipped * A) & (capped == ratio)
    slope = np.where(moves, -ratio * A, 0.0)  # by w
    figures = {"policy/clipped": (float(((clipped != ratio) & ~moves).sum()), float(len(w)))}
    if options.importance_cap:
        sampled = np.concatenate([each.sampled for each in samples])
        correction = np.minimum(np.exp(old - sampled), options.importance_cap)
        loss, slope = loss * correction, slope * correction
    gradient = share * slope
    gradient = mean(gradient) if whole else gradient  # a token is 1/n of its sample's mean
    if reference is not None:
        r = reference - logp
        kl = np.exp(r) - r - 1
        figures["policy/reference_kl"] = float(kl.sum()), float(len(kl))
        loss, gradient = loss + options.beta * kl, gradient + share * options.beta * -np.expm1(r)
    return float((share * loss).sum()), gradient, figures


class Policy:
    """The tapes of a policy loss over a SequenceEngine's weights, and their inputs."""

    def __init__(self, engine: Any, options: PolicyOptions) -> None:
        self.engine, self.options = engine, options
        #: figures of the last batch: (sum, count)
        self.figures: Mapping[str, tuple[float, float]] = {}
        self._samples: Sequence[Sample] = ()
        self._reference: Doubles | None = None
        self._gradient = np.zeros(0)

    def record(self, batch: int, *, train: bool) -> Recorded:
        """Record the loss of a batch of at most ``batch`` rows of t_seq tokens."""
        s = self.engine.session
        losses = self._record_losses(batch, train=train)
        s.input("hp", (7,))
        # A node of NumPy reads whole arrays: each token is a sum of its own, of the tokens used.
        bounds = s.input("bounds", (2 * losses.size + 1,), "i32")
        sums = ops.token_sums(s, losses, bounds)
        loss = ops.numpy(s, self._loss, self._slopes, [sums], ())
        s.set_loss(loss)
        return Recorded(tape=s.tape, loss=loss)

    def _record_losses(self, batch: int, *, train: bool = False, adapted: bool = True) -> Tensor:
        """Record -log p of each token of completions; the head computes no others."""
        engine, s = self.engine, self.engine.session
        layers, x, labels = engine.record_labelled(batch, packed=True, adapted=adapted, train=train)
        logits = engine.model.logits(layers, engine.config, engine.options, x)
        if self.options.temperature != 1:
            logits = ops.scale(s, logits, 1 / self.options.temperature)
        return ops.token_losses(s, logits, labels)

    def _loss(self, sums: NDArray[np.float32]) -> Doubles:
        samples = self._samples
        sizes = np.cumsum([len(each.tokens) for each in samples])
        logp = -sums[: sizes[-1], 1].astype(np.float64)
        for each, values in zip(samples, np.split(logp, sizes[:-1]), strict=True):
            each.old = values.tolist() if each.old is None else each.old
        old = np.concatenate([np.asarray(each.old) for each in samples])
        loss, gradient, figures = policy_loss(logp, old, samples, self.options, self._reference)
        gap = np.abs(old - np.concatenate([each.sampled for each in samples]))
        figures["sampling/difference_mean"] = float(gap.sum()), float(len(gap))
        figures["sampling/difference_max"] = float(gap.max()), 1.0
        self._gradient, self.figures = np.zeros(sums.shape), figures
        self._gradient[: len(logp), 1] = -gradient
        return np.array(loss)

    def _slopes(self, dy: NDArray[np.float32], sums: NDArray[np.float32]) -> Doubles:
        return self._gradient * float(dy)

    def checked(self, batch: Batch) -> PolicyBatch:
        """Return a batch as arrays. Raises ShapeError unless it has samples."""
        if not isinstance(batch, PolicyBatch) or not batch.samples:
            raise ShapeError("policy: expected a PolicyBatch, which has samples")
        checked: PolicyBatch = packed.checked(batch, self.engine.t_seq, self.engine.context)  # type: ignore[assignment]
        return checked

    def inputs(self, step: Recorded, batch: PolicyBatch) -> Inputs:
        """Return the inputs of the loss's tape; the reference reads the batch first."""
        self._samples, self._reference = batch.samples, None
        if self.options.beta:
            self._reference = self._reference_of(batch)
        inputs = step.tape.inputs
        count = sum(len(each.tokens) for each in batch.samples)
        bounds = np.minimum((np.arange(inputs["bounds"].size) // 2), count)
        values = packed.inputs_of(inputs, batch, self.engine.is_long)
        return values | {"bounds": bounds.astype(np.int32)}

    def _reference_of(self, batch: PolicyBatch) -> Doubles:
        engine, s = self.engine, self.engine.session
        rows = engine.batch_of(batch)

        def record() -> Recorded:
            losses = s.output(self._record_losses(rows, adapted=False))
            return Recorded(tape=s.tape, losses=losses)

        recorded = s.record(("reference losses", rows), record)
        values = packed.inputs_of(recorded.tape.inputs, batch, engine.is_long)
        losses: NDArray[np.float32] = engine.compute(recorded, values, "losses")
        count = sum(len(each.tokens) for each in batch.samples)
        return -losses[:count].astype(np.float64)

    def measure(self, step: Recorded, batch: Batch) -> None:
        """Do nothing: the forward pass has stored the figures."""
