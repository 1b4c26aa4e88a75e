"""Rollouts: many samples of many prompts, as ids, for learning from rewards.

for each in rollouts(engine, prompts, samples=8, max_tokens=64, stop=tokenizer.eog):
    each.prompt, each.sample, each.tokens, each.log_probabilities
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.generation.drawing import BatchEngine, grown
from toynn.generation.sampling import Sampling, log_probability, require_count


@dataclass(frozen=True)
class Rollout:
    """A finished sample of a prompt.

    Attributes
    ----------
    prompt, sample
        The number of the prompt, and of the sample among the prompt's.
    tokens
        Its n tokens; the last is a stop token if it ended by one.
    log_probabilities
        The log probability of each token (n,), in nats, at the temperature of the sampling (at 1
        where that is 0), over all tokens.
    ended
        "token" (a stop token) or "length" (``max_tokens``, or the context is full).
    """

    prompt: int
    sample: int
    tokens: tuple[int, ...]
    log_probabilities: NDArray[np.float64]
    ended: Literal["token", "length"]


def rollouts(
    engine: BatchEngine,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int = 1,
    max_tokens: int = 256,
    stop: Collection[int] = frozenset(),
    rows: int = 32,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Iterator[Rollout]:
    """Yield ``samples`` continuations of each prompt (ids), in order of prompt, then sample.

    ``rows`` are written at a time; when one ends, the next begins. A prompt is read once for its
    samples. Each has a random generator of its own, of (``seed``, prompt, sample). So its tokens
    and their log probabilities depend, to the bit, neither on the others, nor on ``rows``, nor on
    the number of threads. For temperature, top_k and top_p see ``toynn.generation.Sampling``.

    The keys and values of ``rows`` + 1 sequences stay in memory: 2 x layers x heads of keys x
    columns x 4 bytes for each token of the longest prompt and ``max_tokens``, rounded up to a power
    of two.

    Raises ConfigError for values out of range, and for a prompt that is empty or leaves no room in
    the context; NonFiniteError if the model's logits are not finite.
    """
    for name, value in (("samples", samples), ("rows", rows), ("max_tokens", max_tokens)):
        require_count(name, value, least=1)
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    for number, ids in enumerate(prompts):
        if not 0 < len(ids) < engine.context:
            raise ConfigError(
                f"rollouts: prompt {number} has {len(ids)} tokens; expected 1 to "
                f"{engine.context - 1}, so that one more fits into the model's context"
            )
    all_rows = [
        _Row(list(ids), (number, sample), min(max_tokens, engine.context - len(ids)), how, stop)
        for number, ids in enumerate(prompts)
        for sample in range(samples)
    ]
    if not all_rows:
        return iter(())
    longest = min(engine.context, max(map(len, prompts)) + max_tokens)
    return (row.told() for row in grown(engine, all_rows, rows, longest, []))


class _Row:
    """A sample that is being written."""

    def __init__(
        self,
        ids: list[int],
        which: tuple[int, int],
        most: int,
        how: Sampling,
        stop: Collection[int],
    ) -> None:
        self.seen, self._begin, self._which, self._most = ids, len(ids), which, most
        self._how, self._stop = how, stop
        self._random = np.random.default_rng([how.seed, *which])
        self._log_p: list[float] = []

    @property
    def goes_on(self) -> bool:
        return len(self._log_p) < self._most and not self._stopped

    @property
    def _stopped(self) -> bool:
        return bool(self._log_p) and self.seen[-1] in self._stop

    def take(self, logits: NDArray[np.float32]) -> None:
        token = self._how.pick(logits, self.seen, self._random)
        tempered = logits / np.float32(self._how.temperature or 1)
        self._log_p.append(log_probability(tempered, token))
        self.seen.append(token)

    def told(self) -> Rollout:
        ended: Literal["token", "length"] = "token" if self._stopped else "length"
        tokens = tuple(self.seen[self._begin :])
        return Rollout(*self._which, tokens, np.array(self._log_p), ended)
