"""Scores of a text's tokens: -log p(token | tokens before it), in nats.

    log p(v) = z[v] - max(z) - log sum_u exp(z[u] - max(z))      z: the logits, in float64

Sequences are padded to a few lengths, so that few tapes are compiled. The padding comes last, where
a causal model does not see it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import ConfigError, NonFiniteError

Floats = NDArray[np.float64]
SHORTEST = 32  # tokens of the shortest tape
FILLER = 0
ROWS = 64  # rows whose log-probabilities are computed at once


class Causal(Protocol):
    """A causal model: any engine for sequences."""

    @property
    def context(self) -> int:
        """Most tokens that the model sees."""

    def logits(self, ids: ArrayLike, batch: int | None = None) -> NDArray[np.float32]:
        """Return logits (len(ids), V) of flat ids."""

    def check_unchanged(self) -> None:
        """Raise an error if a mapped file has changed since it was opened."""


def read(engine: Causal, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
    """Return logits (len(ids), V) of one sequence. Raises ConfigError for one beyond the context.

    Raises NonFiniteError for NaN or infinite logits, and the errors of ``check_unchanged``.
    """
    tokens = np.asarray(ids, np.int32)
    if not 0 < len(tokens) <= engine.context:
        raise ConfigError(
            f"evaluation: a sequence has 1 to {engine.context} tokens, the model's context; got "
            f"{len(tokens)}"
        )
    length = SHORTEST
    while length < len(tokens):
        length *= 2
    filled = np.full(min(length, engine.context), FILLER, np.int32)
    filled[: len(tokens)] = tokens
    logits = engine.logits(filled, batch=1)[: len(tokens)]
    engine.check_unchanged()
    return finite(logits)


def finite(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return logits. Raises NonFiniteError for NaN or infinite ones."""
    if not np.isfinite(logits).all():
        raise NonFiniteError(
            "evaluation: the model's logits are not finite: its weights may be bad"
        )
    return logits


def log_probabilities(logits: NDArray[np.float32]) -> Iterator[tuple[slice, Floats]]:
    """Yield log p (n, V) of a few rows of logits at a time, each with its slice of rows."""
    for first in range(0, len(logits), ROWS):
        rows = slice(first, first + ROWS)
        z = logits[rows].astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        yield rows, z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def losses(logits: NDArray[np.float32], labels: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return -log p (N,) of each row's label, and whether it is the likeliest token."""
    nats = np.empty(len(labels))
    likeliest = np.empty(len(labels), np.bool_)
    for rows, log_p in log_probabilities(logits):
        wanted = labels[rows]
        nats[rows] = -log_p[np.arange(len(wanted)), wanted]
        likeliest[rows] = log_p.argmax(axis=1) == wanted
    return nats, likeliest
