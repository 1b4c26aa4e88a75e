"""A model's completion as a text, up to a stop token, a stop text, or a length.

complete(engine, tokenizer, "Once upon a time", max_tokens=50, stop=["The end"]).text
complete(engine, tokenizer, [{"role": "user", "content": "Hello"}]).text
for found in complete_all(engine, tokenizer, prompts, batch=8): print(found.text)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.generation.drawing import BatchEngine, Drawing, Drawn, Engine, Reader, draw, grown
from toynn.generation.sampling import Sampling, SamplingOptions

Prompt = str | Sequence[Mapping[str, Any]]
Ended = Literal["token", "stop", "length", "interrupt"]


class Stream(Protocol):
    """Ids to text, one by one."""

    def push(self, id: int) -> str:
        """Add an id; return the text that is complete with it."""

    def end(self) -> str:
        """Return the rest of the text."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that encode and decode."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def eog(self) -> frozenset[int]:
        """The tokens that end a generation."""

    @property
    def add_eos(self) -> bool:
        """Whether a text ends with EOS."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of a text."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a conversation, up to where the model answers."""

    def stream(self) -> Stream:
        """Return a decoder for ids that come one by one."""


class Stops:
    """Texts that end a generation. Text that may begin a stop text is held back.

    Raises ConfigError for stop texts that are empty or not strings.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"generate: stop must be a list of non-empty texts; got {texts!r}")
        self._texts, self._held = tuple(texts), ""
        #: whether a stop text came
        self.found = False

    def push(self, text: str) -> str:
        """Add a text; return the text that may be shown now, up to the first stop text."""
        held = self._held + text
        ends = [at for stop in self._texts if (at := held.find(stop)) >= 0]
        if ends or self.found:
            self.found, self._held = True, ""
            return held[: min(ends)] if ends else ""
        keep = max((self._overlap(held, stop) for stop in self._texts), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """Return the text that was held back, since no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Return the length of the longest end of the text that begins the stop text."""
        most = min(len(text), len(stop) - 1)
        return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True)
class Completion:
    """A model's completion.

    ``ended`` is the reason of its end: "token" (a stop token), "stop" (a stop text), "length" or
    "interrupt". ``drawn`` are all tokens, including those of a stop text.
    """

    text: str
    ended: Ended
    drawn: tuple[Drawn, ...]
    prompt_tokens: int


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Return the ids of a prompt, which is a text or messages.

    Raises ConfigError if there are none.
    """
    if not isinstance(prompt, str):
        return tokenizer.encode_chat(prompt)
    ids = begun_ids(tokenizer, prompt)
    if not ids:
        raise ConfigError("generate: the prompt is empty; it needs at least one token")
    return ids


def begun_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text that goes on: without an EOS at its end."""
    ids = list(tokenizer.encode(text))
    return ids[:-1] if tokenizer.add_eos and ids[-1:] == [tokenizer.eos] else ids


class _Written:
    """A completion that grows by a token at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tokens: int,
        max_tokens: int,
        stop: Sequence[str],
        show: Callable[[str], object] | None = None,
    ) -> None:
        self._stops, self._stream, self._show = Stops(stop), tokenizer.stream(), show
        self._prompt_tokens, self._most = prompt_tokens, max_tokens
        self._texts: list[str] = []
        self._drawn: list[Drawn] = []

    def add(self, token: Drawn) -> bool:
        """Add a token; return whether a stop text came."""
        self._drawn.append(token)
        self._tell(self._stops.push(self._stream.push(token.id)))
        return self._stops.found

    def end(self, by: Ended = "token") -> Completion:
        """Return the completion. The reason of its end is known here, except for an interrupt."""
        if not self._stops.found:
            self._tell(self._stops.push(self._stream.end()))
        if not self._stops.found:
            self._tell(self._stops.end())
        if self._stops.found:
            by = "stop"
        elif by == "token" and len(self._drawn) == self._most:
            by = "length"
        return Completion("".join(self._texts), by, tuple(self._drawn), self._prompt_tokens)

    def _tell(self, text: str) -> None:
        self._texts.append(text)
        if self._show is not None:
            self._show(text)


def _given(tokenizer: Tokenizer, prompt: Prompt | Sequence[int]) -> list[int]:
    """Return the ids of a text or messages; ids are returned unchanged."""
    if isinstance(prompt, str) or any(isinstance(part, Mapping) for part in prompt):
        return prompt_ids(tokenizer, prompt)  # type: ignore[arg-type]
    return list(prompt)  # type: ignore[arg-type]


def complete(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Prompt | Sequence[int],
    max_tokens: int = 256,
    *,
    stop: Sequence[str] = (),
    reader: Reader | None = None,
    show: Callable[[str], object] | None = None,
    interruptible: bool = False,
    **how: Unpack[SamplingOptions],
) -> Completion:
    """Return a model's continuation of a text, messages, or ids.

    ``stop`` are texts that end it; they are left out, like the tokenizer's own stop tokens. For
    temperature, seed and the like see ``toynn.generation.Sampling``; for ``reader`` see
    ``toynn.generation.generate``. ``show`` gets the text as it comes. If ``interruptible``, Ctrl-C
    ends the completion without an error.

    Raises ConfigError for an empty prompt, and for values out of range.
    """
    sampling = Sampling(**how)
    ids = _given(tokenizer, prompt)
    written = _Written(tokenizer, len(ids), max_tokens, stop, show)
    tokens = draw(engine, ids, max_tokens, sampling, stop=tokenizer.eog, reader=reader)
    try:
        for token in tokens:
            if written.add(token):
                break
    except KeyboardInterrupt:
        if not interruptible:
            raise
        return written.end("interrupt")
    return written.end()


def complete_all(
    engine: BatchEngine,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt | Sequence[int]],
    max_tokens: int = 256,
    *,
    batch: int = 8,
    samples: int = 1,
    stop: Sequence[str] = (),
    interruptible: bool = False,
    **how: Unpack[SamplingOptions],
) -> Iterator[Completion]:
    """Yield ``samples`` continuations of each of many prompts by a model, in their order.

    ``batch`` completions are written at a time; when one ends, the next begins. Each has its own
    random generator, as in ``complete``: the k-th of a prompt, from 0 on, has the seed ``seed`` +
    k. Its tokens depend neither on the others nor on ``batch``. In precision highest they are those
    of ``complete``. In medium and int8 two tokens that are about equally likely may be exchanged,
    because ``complete`` adds products in another order. If ``interruptible``, Ctrl-C ends the
    completions that have begun, and no others follow. For all other arguments see ``complete``.

    Raises ConfigError for a batch or samples below 1, an empty prompt, and values out of range.
    """
    for name, value in (("batch", batch), ("samples", samples)):
        if value < 1:
            raise ConfigError(f"generate: {name} must be 1 or more; got {value}")
    sampling = Sampling(**how)
    seeded = [replace(sampling, seed=sampling.seed + k) for k in range(samples)]
    texts = [_given(tokenizer, prompt) for prompt in prompts]
    answers = [
        _Answer(
            Drawing(ids, max_tokens, each, context=engine.context, stop=tokenizer.eog),
            _Written(tokenizer, len(ids), max_tokens, stop),
        )
        for ids in texts
        for each in seeded
    ]
    if not answers:
        return iter(())
    begun: list[_Answer] = []
    longest = max(map(len, texts)) + max_tokens
    return _told(grown(engine, answers, batch, longest, begun), begun, interruptible)


class _Answer:
    """One of many completions."""

    def __init__(self, drawing: Drawing, written: _Written) -> None:
        self.drawing, self.written, self._stopped = drawing, written, False

    @property
    def seen(self) -> list[int]:
        """The tokens that the model sees."""
        return self.drawing.seen

    @property
    def goes_on(self) -> bool:
        """Whether there is a next token."""
        return not self.drawing.ended and not self._stopped

    def take(self, logits: NDArray[np.float32]) -> None:
        """Draw the next token."""
        token = self.drawing.take(logits)
        self._stopped = token is not None and self.written.add(token)


def _told(
    ended: Iterator[_Answer], begun: Sequence[_Answer], interruptible: bool
) -> Iterator[Completion]:
    """Yield the completions of answers in their order."""
    told = 0
    try:
        for answer in ended:
            yield answer.written.end()
            told += 1
    except KeyboardInterrupt:
        if not interruptible:
            raise
        for answer in begun[told:]:
            yield answer.written.end("interrupt" if answer.goes_on else "token")
