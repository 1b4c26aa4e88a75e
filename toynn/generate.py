"""Sampling: continue a sequence of tokens, one token at a time."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError

__all__ = ["sample"]


class Engine(Protocol):
    """A causal model."""

    @property
    def context(self) -> int:
        """How many tokens it sees at most."""

    def logits(self, ids: NDArray[np.int32], batch: int) -> NDArray[np.float32]:
        """Return the logits (T, V) of T tokens: one sequence if ``batch`` is 1."""


def sample(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
) -> list[int]:
    """Return max_tokens new tokens that continue the prompt; the prompt is not among them.

    Temperature 0 takes the likeliest token; top_k = 0 lets every token take part.
    """
    if not prompt_ids:
        raise ConfigError("sample: the prompt is empty; it needs at least one token")
    if not temperature >= 0 or top_k < 0 or max_tokens < 0:
        raise ConfigError(
            "sample: temperature, top_k and max_tokens must not be negative; "
            f"got {temperature}, {top_k} and {max_tokens}"
        )
    random = np.random.default_rng(seed)
    ids = list(prompt_ids)
    for _ in range(max_tokens):
        ids.append(_pick(_next_logits(engine, ids), temperature, top_k, random))
    return ids[len(prompt_ids) :]


def _next_logits(engine: Engine, ids: list[int]) -> NDArray[np.float64]:
    """Return the logits (V,) of the token after ids, from as many of them as the model sees.

    The window is always full, so that one program serves every length: a causal model cannot look
    at the padding on the right.
    """
    seen = ids[-engine.context :]
    window = np.zeros(engine.context, np.int32)
    window[: len(seen)] = seen
    logits: NDArray[np.float64] = engine.logits(window, batch=1)[len(seen) - 1].astype(np.float64)
    return logits


def _pick(
    logits: NDArray[np.float64], temperature: float, top_k: int, random: np.random.Generator
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        smallest_kept = np.partition(logits, -top_k)[-top_k]
        logits = np.where(logits >= smallest_kept, logits, -np.inf)
    p = np.exp((logits - logits.max()) / temperature)
    return int(random.choice(len(p), p=p / p.sum()))
