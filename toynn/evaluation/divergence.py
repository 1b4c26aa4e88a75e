"""The Kullback-Leibler divergence of a model's predictions from another model's.

    KL = sum_v p(v) (log p(v) - log q(v))      p: the base's probabilities, q: the model's

It is measured on the same rows of the same windows as perplexity, or on examples' tokens with loss.
Source: llama.cpp, tools/perplexity, --kl-divergence; Kullback & Leibler 1951,
doi:10.1214/aoms/1177729694.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED
from toynn.errors import ConfigError
from toynn.evaluation.perplexity import (
    Progress,
    Score,
    score,
    silent,
    stop_and_rest,
    text_windows,
)
from toynn.evaluation.scores import Causal, Floats, log_probabilities, read


@dataclass(frozen=True)
class Divergence:
    """A model compared with a base: both scores, and the divergence, in nats.

    Attributes
    ----------
    model, base
        Their scores over the same tokens.
    mean, error, largest
        Mean KL divergence, the standard error of the mean, and the largest divergence.
    same_top, same_top_error
        Share of the rows in which both models' likeliest tokens agree, and its standard error.
    rms_delta_p
        Root mean square of q(token) - p(token) over the actual tokens.
    stop, rest
        For examples, the model's scores over stop tokens and over the rest; None if there are none.
    """

    model: Score
    base: Score
    mean: float
    error: float
    largest: float
    same_top: float
    same_top_error: float
    rms_delta_p: float
    stop: Score | None = None
    rest: Score | None = None


def divergence(
    engine: Causal,
    base: Causal,
    ids: NDArray[np.int32],
    length: int = 512,
    bos: int | None = None,
    *,
    progress: Progress = silent,
) -> Divergence:
    """Compare a model with a base over a text.

    Raises ConfigError if their vocabularies differ in size.
    """
    first = length // 2
    windows = text_windows(ids, length, bos)
    rows = ((window, slice(first, -1), answers[first:]) for window, answers in windows)
    count = len(ids) // length if length > 0 else 0
    return _compared(engine, base, rows, count, progress)


def example_divergence(
    engine: Causal,
    base: Causal,
    examples: Any,
    ends: Collection[int] = (),
    *,
    progress: Progress = silent,
) -> Divergence:
    """Compare a model with a base over the tokens with loss of ``toynn.data.examples.Examples``.

    ``ends`` are the stop tokens. Raises ConfigError if the vocabularies differ in size.
    """
    order = np.argsort([len(examples[k].ids) for k in range(len(examples))], kind="stable")
    some = (examples[int(index)] for index in order)
    rows = ((ids, labels != IGNORED, labels[labels != IGNORED]) for ids, labels in some)
    return _compared(engine, base, rows, len(examples), progress, ends)


def _compared(
    engine: Causal,
    base: Causal,
    texts: Iterable[tuple[NDArray[np.int32], slice | NDArray[np.bool_], NDArray[np.int32]]],
    count: int,
    progress: Progress,
    ends: Collection[int] = (),
) -> Divergence:
    """Compare models over texts: ids, labelled rows, and the labels of these rows."""
    kl: list[Floats] = []
    ours: list[Floats] = []
    bases: list[Floats] = []
    same: list[NDArray[np.bool_]] = []
    wanted: list[NDArray[np.int32]] = []
    for done, (ids, counts, answers) in enumerate(texts, 1):
        logits, expected = read(engine, ids)[counts], read(base, ids)[counts]
        if logits.shape != expected.shape:
            raise ConfigError(
                f"divergence: the model has {logits.shape[1]} tokens, the base {expected.shape[1]}"
            )
        pairs = zip(log_probabilities(logits), log_probabilities(expected), strict=True)
        for (rows, log_q), (_, log_p) in pairs:
            wanted.append(answers[rows])
            at = np.arange(len(wanted[-1]))
            kl.append((np.exp(log_p) * (log_p - log_q)).sum(axis=1))
            ours.append(-log_q[at, wanted[-1]])
            bases.append(-log_p[at, wanted[-1]])
            same.append(log_q.argmax(axis=1) == log_p.argmax(axis=1))
        progress(done, count)
    mean = score(kl)
    share = float(np.concatenate(same).mean())
    delta = np.exp(-np.concatenate(ours)) - np.exp(-np.concatenate(bases))
    return Divergence(
        score(ours),
        score(bases),
        mean.loss,
        mean.error,
        max(float(some.max()) for some in kl),
        share,
        sqrt(share * (1 - share) / max(mean.tokens - 1, 1)),
        sqrt(float((delta * delta).mean())),
        *(stop_and_rest(ours, wanted, ends) if ends else ()),
    )
