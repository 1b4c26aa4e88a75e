"""Generation: a model continues a sequence of tokens, one token at a time.

    p = softmax(logits / temperature)      over the tokens that top_k and top_p leave

The model reads the prompt, and then each token that was drawn: what it read before is in its cache.
When its context is full it reads the newer half of it again, as a new sequence, and goes on; so a
generation ends at ``max_tokens`` or at a token of ``stop``, and not by itself.
"""

from collections.abc import Collection, Iterator, Sequence
from math import isfinite
from numbers import Integral
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, NonFiniteError

__all__ = ["generate", "sample"]


class Decoder(Protocol):
    """A sequence that a model reads piece by piece."""

    @property
    def past(self) -> int:
        """Tokens read so far."""

    def read(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Read the tokens that come next; return the logits (V,) of the one after them."""


class Engine(Protocol):
    """A causal model."""

    @property
    def context(self) -> int:
        """How many tokens it sees at most."""

    def decoder(self) -> Decoder:
        """Begin a sequence."""


def generate(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Collection[int] = frozenset(),
) -> Iterator[int]:
    """Yield up to max_tokens new tokens that continue the prompt, as they come.

    A token of ``stop`` ends the generation and is not among them. A prompt longer than the context
    is seen by its end alone. The same seed gives the same tokens. Raises ConfigError.

    temperature
        0 takes the likeliest token; otherwise the logits are divided by it.
    top_k
        Only the k likeliest tokens take part; 0: all do.
    top_p
        Of those only the likeliest that together have a probability of at least top_p. The order
        is that of transformers: temperature, top_k, top_p; llama.cpp applies temperature last.

    Raises NonFiniteError where the model's logits are not finite.
    """
    if len(prompt_ids) == 0:
        raise ConfigError("generate: the prompt is empty; it needs at least one token")
    for name, number in (("max_tokens", max_tokens), ("top_k", top_k), ("seed", seed)):
        if not isinstance(number, Integral) or number < 0:
            raise ConfigError(f"generate: {name} must be a whole number, 0 or above; got {number}")
    if not (isfinite(temperature) and temperature >= 0):
        raise ConfigError(f"generate: temperature must be a number, 0 or above; got {temperature}")
    if not 0 < top_p <= 1:
        raise ConfigError(f"generate: top_p must be above 0 and at most 1; got {top_p}")

    def tokens() -> Iterator[int]:
        random = np.random.default_rng(seed)
        decoder = engine.decoder()
        ids = list(prompt_ids)
        unread = ids
        for _ in range(max_tokens):
            if decoder.past + len(unread) > engine.context:
                decoder = engine.decoder()
                unread = ids[-max(1, engine.context // 2) :]
            token = _pick(decoder.read(unread), temperature, top_k, top_p, random)
            if token in stop:
                return
            yield token
            ids.append(token)
            unread = [token]

    return tokens()


def sample(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Collection[int] = frozenset(),
) -> list[int]:
    """Return as a list what ``generate`` yields."""
    return list(
        generate(
            engine,
            prompt_ids,
            max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
        )
    )


def _pick(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    random: np.random.Generator,
) -> int:
    if not np.isfinite(logits).all():
        raise NonFiniteError("generate: the model's logits are not finite: its weights may be bad")
    if temperature == 0:
        return int(logits.argmax())
    ids, p = _distribution(logits, temperature, top_k, top_p)
    return int(random.choice(ids, p=p))


def _distribution(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the tokens that take part, and their probabilities.

    Of equally likely ones at its edge top_k keeps all, top_p those of the lower ids.
    """
    ids = np.arange(len(logits))
    if 0 < top_k < len(logits):
        ids = np.flatnonzero(logits >= np.partition(logits, -top_k)[-top_k])
    scores = logits[ids].astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):  # e^-infinity is 0
        p = np.exp((scores - scores.max()) / temperature)
    p /= p.sum()
    if top_p < 1:
        # Most tokens need no sorting: those below this bound have less than 1 - top_p together.
        likely = np.flatnonzero(p >= (1 - top_p) / len(p))
        order = likely[np.argsort(-p[likely], kind="stable")]
        before = np.cumsum(p[order]) - p[order]  # of the tokens that are likelier
        order = order[before < top_p]
        ids, p = ids[order], p[order] / p[order].sum()
    return ids, p
