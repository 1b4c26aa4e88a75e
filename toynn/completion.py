"""A model's answer as a text: up to a token that ends it, a text that does, or its length.

complete(engine, tokenizer, "Once upon a time", max_tokens=50, stop=["The end"]).text
complete(engine, tokenizer, [{"role": "user", "content": "Hello"}]).text
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from toynn.errors import ConfigError
from toynn.generate import Drawn, Engine, Reader, draw
from toynn.sampling import Sampling

__all__ = ["Completion", "Stops", "complete", "prompt_ids"]

Prompt = str | Sequence[Mapping[str, Any]]


class Stream(Protocol):
    """Ids to text, one by one."""

    def push(self, id: int) -> str:
        """Return the text that an id completes."""

    def end(self) -> str:
        """Return what still waits."""


class Tokenizer(Protocol):
    """What turns texts into ids, and ids into texts."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def eog(self) -> frozenset[int]:
        """The tokens that end a generation."""

    @property
    def add_eos(self) -> bool:
        """Whether a text ends with EOS."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a conversation, up to where the model answers."""

    def stream(self) -> Stream:
        """Return a decoder for ids that come one by one."""


class Stops:
    """Texts that end a generation. What may become one of them is held back until it is clear.

    Raises ConfigError for what are no texts, or empty ones.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"generate: stop texts must be texts, and not empty; got {texts!r}")
        self._texts, self._held = tuple(texts), ""
        #: whether one of them came
        self.found = False

    def push(self, text: str) -> str:
        """Return what may be shown of a text that came: all before the first stop text."""
        held = self._held + text
        ends = [at for stop in self._texts if (at := held.find(stop)) >= 0]
        if ends or self.found:
            self.found, self._held = True, ""
            return held[: min(ends)] if ends else ""
        keep = max((self._overlap(held, stop) for stop in self._texts), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """Return what was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Return how much of the text's end a stop text begins with."""
        most = min(len(text), len(stop) - 1)
        return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True)
class Completion:
    """What a model wrote.

    ``ended`` says by what: "token" (one that ends a generation), "stop" (a stop text), "length" or
    "interrupt". ``drawn`` are the tokens, those of a stop text too.
    """

    text: str
    ended: Literal["token", "stop", "length", "interrupt"]
    drawn: tuple[Drawn, ...]
    prompt_tokens: int


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Return the ids that a model is to read before it goes on: of a text, or of messages.

    Raises ConfigError where there are none.
    """
    if not isinstance(prompt, str):
        return tokenizer.encode_chat(prompt)
    ids = tokenizer.encode(prompt)
    if tokenizer.add_eos and ids[-1:] == [tokenizer.eos]:
        ids.pop()  # the text goes on
    if not ids:
        raise ConfigError("generate: the prompt is empty; it needs at least one token")
    return ids


def complete(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Prompt | Sequence[int],
    max_tokens: int = 256,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repeat_penalty: float = 1.0,
    repeat_last_n: int = 64,
    seed: int = 0,
    stop: Sequence[str] = (),
    log_probabilities: int | None = None,
    reader: Reader | None = None,
    show: Callable[[str], object] | None = None,
    interruptible: bool = False,
) -> Completion:
    """Return what a model writes behind a text, a conversation, or ids.

    ``stop`` are texts that end it and are left out; so are the tokenizer's own tokens for that. For
    temperature to repeat_last_n see ``toynn.sampling.Sampling``; for log_probabilities and reader
    ``toynn.generate.draw``. ``show`` is told the text as it comes. If ``interruptible``,
    Ctrl-C ends the completion and is no error.

    Raises ConfigError for an empty prompt, and values out of range.
    """
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
    )
    given = isinstance(prompt, str) or any(isinstance(part, Mapping) for part in prompt)
    ids: Any = prompt_ids(tokenizer, prompt) if given else list(prompt)  # type: ignore[arg-type]
    stops, stream = Stops(stop), tokenizer.stream()
    texts: list[str] = []
    drawn: list[Drawn] = []
    ended: Literal["token", "stop", "length", "interrupt"] = "token"

    def tell(text: str) -> None:
        texts.append(text)
        if show is not None:
            show(text)

    tokens = draw(
        engine,
        ids,
        max_tokens,
        sampling,
        seed=seed,
        stop=tokenizer.eog,
        log_probabilities=log_probabilities,
        reader=reader,
    )
    try:
        for token in tokens:
            drawn.append(token)
            tell(stops.push(stream.push(token.id)))
            if stops.found:
                break
    except KeyboardInterrupt:
        if not interruptible:
            raise
        ended = "interrupt"
    if not stops.found:
        tell(stops.push(stream.end()))
    if not stops.found:
        tell(stops.end())
    if stops.found:
        ended = "stop"
    elif ended == "token" and len(drawn) == max_tokens:
        ended = "length"
    return Completion("".join(texts), ended, tuple(drawn), len(ids))
