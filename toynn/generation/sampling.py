"""Sampling of the next token: temperature, top-k, top-p, min-p and penalties.

    penalty     logit <- logit / c where logit > 0, else logit c     for recent tokens
    p = softmax(logits / temperature)    over the tokens that top_k, top_p and min_p leave

The order is that of transformers: penalty, temperature, top_k, top_p, min_p; llama.cpp applies the
temperature last. Sources: Keskar et al. 2019, arXiv:1909.05858 (penalty); Holtzman et al. 2019,
arXiv:1904.09751 (top_p); Nguyen et al. 2024, arXiv:2407.01082 (min_p).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, NonFiniteError


class SamplingOptions(TypedDict, total=False):
    """The arguments of ``Sampling``, for functions that pass them on."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int
    log_probabilities: int | None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Raises ConfigError for values out of range.

    Attributes
    ----------
    temperature
        0 takes the likeliest token; otherwise the logits are divided by it.
    top_k
        Draw from the k likeliest tokens only; 0: from all.
    top_p
        Of the tokens left, draw from the likeliest that together have a probability of at least
        top_p.
    min_p
        Of the tokens left, draw from those that are at least min_p times as likely as the
        likeliest.
    repeat_penalty
        Divide the logits of recent tokens by this; 1: no penalty.
    repeat_last_n
        How many of the newest tokens, including the prompt's, are recent.
    seed
        The same seed gives the same tokens.
    log_probabilities
        Return the log probabilities of this many likeliest tokens at each step. None: none are
        computed, and the drawn token's own is NaN.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    log_probabilities: int | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "repeat_last_n", "seed"):
            require_count(name, getattr(self, name))
        if self.log_probabilities is not None:
            require_count("log_probabilities", self.log_probabilities)
        t, p = self.temperature, self.top_p
        _require(_is_finite(t) and t >= 0, "temperature", "a number, 0 or above", t)
        _require(_is_finite(p) and 0 < p <= 1, "top_p", "above 0 and at most 1", p)
        p, c = self.min_p, self.repeat_penalty
        _require(_is_finite(p) and 0 <= p <= 1, "min_p", "at least 0 and at most 1", p)
        _require(_is_finite(c) and c > 0, "repeat_penalty", "a number above 0", c)

    def pick(
        self, logits: NDArray[np.float32], before: Sequence[int], random: "np.random.Generator"
    ) -> int:
        """Return a token drawn from logits (V,); ``before`` are the tokens so far.

        Raises NonFiniteError if the logits are not finite.
        """
        if not np.isfinite(logits).all():
            raise NonFiniteError(
                "generate: the model's logits are not finite: its weights may be bad"
            )
        logits = self._penalized(logits, before)
        if self.temperature == 0:
            return int(logits.argmax())
        ids, p = self.distribution(logits)
        total = p.cumsum()  # as Generator.choice does, which first takes long to check p
        return int(ids[(total / total[-1]).searchsorted(random.random(), side="right")])

    def _penalized(self, logits: NDArray[np.float32], before: Sequence[int]) -> NDArray[np.float32]:
        if self.repeat_penalty == 1 or not self.repeat_last_n or not before:
            return logits
        ids = np.unique(np.asarray(before[-self.repeat_last_n :]))
        logits, penalty = logits.copy(), np.float32(self.repeat_penalty)
        recent = logits[ids]
        logits[ids] = np.where(recent > 0, recent / penalty, recent * penalty)
        return logits

    def distribution(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the tokens that can be drawn, and their probabilities, at a temperature above 0.

        If tokens at the limit are equally likely, top_k keeps all of them, top_p the lower ids.
        """
        ids = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            ids = np.flatnonzero(logits >= np.partition(logits, -self.top_k)[-self.top_k])
            logits = logits[ids]
        with np.errstate(over="ignore", under="ignore"):  # e^-infinity is 0
            # Exponentials of float32 are ten times as fast, and right to 1e-5.
            scores = (logits - logits.max()) / np.float32(max(self.temperature, 1e-30))
            p = np.exp(scores).astype(np.float64)
        p /= p.sum()
        if self.top_p < 1:
            # Tokens below this bound have less than 1 - top_p in all, so they need no sorting.
            likely = np.flatnonzero(p >= (1 - self.top_p) / len(p))
            order = likely[np.argsort(-p[likely], kind="stable")]
            before = np.cumsum(p[order]) - p[order]  # total of the likelier tokens
            order = order[before < self.top_p]
            ids, p = ids[order], p[order] / p[order].sum()
        if self.min_p > 0:
            kept = p >= self.min_p * p.max()
            ids, p = ids[kept], p[kept] / p[kept].sum()
        return ids, p


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log probabilities (V,) of logits (V,), in nats, at temperature 1."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    return scores


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Return ``log_softmax(logits)[token]``, to 1e-6: exponentials of float32 are faster."""
    most = logits.max()
    return float(logits[token] - most) - float(np.log(np.exp(logits - most).sum(dtype=np.float64)))


def require_count(name: str, value: object, least: int = 0) -> None:
    """Raise ConfigError unless a value is a whole number of at least ``least``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    fits = whole and int(value) >= least  # type: ignore[call-overload]
    _require(fits, name, f"a whole number, {least} or above", value)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and isfinite(value)


def _require(holds: bool, name: str, needed: str, got: object) -> None:
    if not holds:
        raise ConfigError(f"generate: {name} must be {needed}; got {got}")
