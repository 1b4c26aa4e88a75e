"""Perplexity of a long text, in llama.cpp's way; and of examples, over their tokens with loss.

    perplexity = exp(mean of -log p(token | tokens before it))

llama.cpp's way: the text is cut into windows of L tokens that do not overlap. BOS replaces the
first token of each window if the model wants a BOS. Only predictions from row L / 2 on count,
because these have at least half a window before them. Tokens after the last whole window do not
count. Source: llama.cpp, tools/perplexity.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED
from toynn.errors import ConfigError, DataError
from toynn.evaluation.scores import Causal, Floats, losses, read

Progress = Callable[[int, int], None]


def silent(done: int, of: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Score:
    """The mean loss of ``tokens`` tokens, in nats, and its standard error."""

    loss: float
    error: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return exp(self.loss) if self.loss < 700 else inf

    @property
    def perplexity_error(self) -> float:
        """Standard error of the perplexity, to first order."""
        return self.error * self.perplexity


class TextScore(NamedTuple):
    """Scores of a text: over the second halves of its windows, and over all predictions."""

    second_halves: Score
    every: Score


def score(nats: Iterable[Floats]) -> Score:
    """Return the score of losses. Raises DataError if there are none."""
    count, total, squares = 0, 0.0, 0.0
    for some in nats:
        count += len(some)
        total += float(some.sum())
        squares += float((some * some).sum())
    if not count:
        raise DataError("evaluation: there is no token to predict")
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    return Score(mean, sqrt(variance / (count - 1)) if count > 1 else 0.0, count)


def text_windows(
    ids: NDArray[np.int32], length: int, bos: int | None
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yield the windows of a text: ids to read (L,), and labels (L - 1,).

    Raises ConfigError for a text of fewer than two windows, which llama.cpp refuses, too.
    """
    if length < 4:
        raise ConfigError(f"perplexity: a window has at least 4 tokens; got {length}")
    if len(ids) < 2 * length:
        raise ConfigError(
            f"perplexity: the text has {len(ids)} tokens; windows of {length} need at least "
            f"{2 * length}: use a longer text or shorter windows"
        )
    for begin in range(0, len(ids) - length + 1, length):
        window = ids[begin : begin + length].copy()
        answers = window[1:].copy()
        if bos is not None:
            window[0] = bos
        yield window, answers


def perplexity(
    engine: Causal,
    ids: NDArray[np.int32],
    length: int = 512,
    bos: int | None = None,
    *,
    progress: Progress = silent,
) -> TextScore:
    """Return the scores of a text of ids, read in windows of ``length`` tokens.

    ``bos``, if given, replaces the first token of each window. ``progress`` is called after each
    window with the number of windows done and in all.
    """
    every: list[Floats] = []
    for window, answers in text_windows(ids, length, bos):
        every.append(losses(read(engine, window)[:-1], answers)[0])
        progress(len(every), len(ids) // length)
    return TextScore(score(some[length // 2 :] for some in every), score(every))


class ExampleScore(NamedTuple):
    """Scores of examples: over all tokens with loss, over stop tokens, and over the rest.

    A score is None if there are no such tokens.
    """

    every: Score
    stop: Score | None
    rest: Score | None


def example_loss(engine: Causal, examples: Any, *, progress: Progress = silent) -> Score:
    """Return the score of ``toynn.data.examples.Examples`` over their tokens with loss."""
    return example_scores(engine, examples, (), progress=progress).every


def example_scores(
    engine: Causal, examples: Any, ends: Collection[int], *, progress: Progress = silent
) -> ExampleScore:
    """Return the scores of ``toynn.data.examples.Examples``, of stop tokens and of others.

    ``ends`` are the stop tokens. Each example is read alone, the shortest first, so that few tapes
    are compiled.
    """
    lengths = [len(examples[index].ids) for index in range(len(examples))]
    every: list[Floats] = []
    answers: list[NDArray[np.int32]] = []
    for done, index in enumerate(np.argsort(lengths, kind="stable"), 1):
        ids, labels = examples[int(index)]
        counts = labels != IGNORED
        every.append(losses(read(engine, ids)[counts], labels[counts])[0])
        answers.append(labels[counts])
        progress(done, len(lengths))
    return ExampleScore(score(every), *stop_and_rest(every, answers, ends))


def stop_and_rest(
    nats: Sequence[Floats], answers: Sequence[NDArray[np.int32]], ends: Collection[int]
) -> tuple[Score | None, Score | None]:
    """Return the scores of the losses whose labels are in ``ends``, and of the others."""
    pairs = [(some, np.isin(a, list(ends))) for some, a in zip(nats, answers, strict=True)]
    parts = [[some[e] for some, e in pairs], [some[~e] for some, e in pairs]]
    stop, rest = (score(part) if any(map(len, part)) else None for part in parts)
    return stop, rest
