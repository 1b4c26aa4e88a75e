"""Generation: a model continues a sequence of tokens, one token at a time.

The model reads the prompt, then each token that was drawn (``Sampling`` says how); its cache holds
what it read before. When the context is full, the model reads the newer half of the tokens again as
a new sequence, and goes on. So a generation ends only at ``max_tokens`` or at a token of ``stop``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.generation.sampling import Sampling, SamplingOptions, log_softmax, require_count


class Decoder(Protocol):
    """A sequence that a model reads piece by piece."""

    @property
    def past(self) -> int:
        """Tokens read so far."""

    def read(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Read the tokens that come next; return the logits (V,) of the one after them."""


class BatchDecoder(Protocol):
    """Several sequences that a model reads together, by their indices."""

    def past(self, number: int) -> int:
        """Return the number of tokens of a sequence that were read so far."""

    def rewind(self, number: int) -> None:
        """Begin a sequence anew."""

    def copy(self, source: int, target: int) -> None:
        """Let a sequence become a copy of another one."""

    def read(self, pieces: Mapping[int, Sequence[int]]) -> dict[int, NDArray[np.float32]]:
        """Read the next tokens of some sequences; return the logits (V,) after each piece."""


class Engine(Protocol):
    """A causal model."""

    @property
    def context(self) -> int:
        """Most tokens that the model sees."""

    def decoder(self) -> Decoder:
        """Begin a sequence."""


class BatchEngine(Engine, Protocol):
    """A causal model that reads several sequences together."""

    def batch_decoder(self, batch: int, room: int) -> BatchDecoder:
        """Begin ``batch`` sequences of at most ``room`` tokens."""


def _known(read: Sequence[int], ids: Sequence[int]) -> int:
    """Return how many of ids need not be read again: all of ``read``, or none."""
    return len(read) if len(read) < len(ids) and ids[: len(read)] == read else 0


class Reader:
    """Keeps what a model has read between generations, so that a conversation is read once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._decoder: Decoder | None = None
        self._ids: list[int] = []  # what the decoder has read

    def read(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits (V,) of the token after ids; only the new ids are read.

        A new sequence is begun if ids do not start with those that were read before. It is also
        begun if the last read was interrupted: the decoder's position then differs from the one
        noted here.
        """
        ids = list(ids)
        shared = _known(self._ids, ids)
        if self._decoder is None or not shared or self._decoder.past != shared:
            self._decoder, self._ids, shared = self._engine.decoder(), [], 0
        logits = self._decoder.read(ids[shared:])
        self._ids = ids
        return logits


class BatchReader:
    """Keeps what a model has read of several sequences."""

    def __init__(self, engine: BatchEngine, batch: int, room: int) -> None:
        self._decoder, self.batch = engine.batch_decoder(batch, room), batch
        self._ids: list[list[int]] = [[] for _ in range(batch)]

    def read(self, wanted: Mapping[int, Sequence[int]]) -> dict[int, NDArray[np.float32]]:
        """Read what is new of each wanted sequence; return the logits (V,) of the token after it.

        Like ``Reader.read`` it begins a sequence anew if its last read was interrupted.
        """
        pieces = {}
        for number, ids in wanted.items():
            shared = _known(self._ids[number], list(ids))
            if not shared or self._decoder.past(number) != shared:
                self._decoder.rewind(number)
                self._ids[number], shared = [], 0
            pieces[number] = ids[shared:]
        logits = self._decoder.read(pieces) if pieces else {}
        for number, piece in pieces.items():
            self._ids[number] += piece
        return logits

    def begin(self, number: int) -> None:
        """Begin a sequence anew, even if it goes on as the last one did: its bits are its own."""
        self._ids[number] = []

    def move(self, source: int, target: int) -> None:
        """Let a sequence take the place of another one, which has ended."""
        self._decoder.copy(source, target)
        self._ids[target] = list(self._ids[source])


class Growing(Protocol):
    """A sequence that grows by a token at a time."""

    @property
    def seen(self) -> list[int]:
        """The tokens that the model sees."""

    @property
    def goes_on(self) -> bool:
        """Whether there is a next token."""

    def take(self, logits: NDArray[np.float32]) -> object:
        """Draw the next token from logits (V,)."""


G = TypeVar("G", bound=Growing)


def grown(
    engine: BatchEngine, rows: Sequence[G], batch: int, longest: int, begun: list[G]
) -> Iterator[G]:
    """Let ``batch`` sequences of up to ``longest`` tokens grow at a time; yield them in order.

    When one ends, the next takes its place. If none is left, the last one does, so that fewer rows
    are computed. ``begun`` gets the rows as they begin.
    """
    room = min(engine.context, 1 << (longest - 1).bit_length())  # few sizes, so memory is reused
    reader = BatchReader(engine, min(batch, len(rows)), room)
    places: list[G] = []
    told = 0
    while told < len(rows):
        for place in range(reader.batch):
            while len(begun) < len(rows) and not any(row.goes_on for row in places[place:][:1]):
                begun.append(rows[len(begun)])
                places[place : place + 1] = begun[-1:]
                reader.begin(place)
        for place in reversed(range(len(places))):
            if not places[place].goes_on:
                last = places.pop()
                if place < len(places):
                    reader.move(len(places), place)
                    places[place] = last
        for place, logits in reader.read({n: row.seen for n, row in enumerate(places)}).items():
            places[place].take(logits)
        while told < len(begun) and not rows[told].goes_on:
            yield rows[told]
            told += 1


class Drawn(NamedTuple):
    """A token that was drawn.

    Attributes
    ----------
    id
        The token.
    log_probability
        The token's log probability in nats, before temperature and penalty.
    likeliest
        The likeliest tokens with their log probabilities, as many as were requested.
    """

    id: int
    log_probability: float
    likeliest: tuple[tuple[int, float], ...]


class Drawing:
    """A sequence that is being continued.

    For its arguments see ``draw``. ``seen`` are the tokens to read before the next one is drawn;
    ``ended`` is True once no token follows.

    Raises ConfigError for values out of range.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        *,
        context: int,
        stop: Collection[int] = frozenset(),
    ) -> None:
        if len(prompt_ids) == 0:
            raise ConfigError("generate: the prompt is empty; it needs at least one token")
        require_count("max_tokens", max_tokens)
        self._sampling, self._stop, self._context = sampling, stop, context
        self._random = np.random.default_rng(sampling.seed)
        self._ids, self._begin, self._left = list(prompt_ids), 0, max_tokens
        self.ended = max_tokens == 0
        self._fit()

    @property
    def seen(self) -> list[int]:
        """The tokens that the model sees: all, or the newer ones after the context was full."""
        return self._ids[self._begin :]

    def take(self, logits: NDArray[np.float32]) -> Drawn | None:
        """Draw the next token from logits (V,); return None if it is a stop token."""
        token = self._sampling.pick(logits, self._ids, self._random)
        self._left -= 1
        self.ended = token in self._stop or not self._left
        if token in self._stop:
            return None
        drawn = _told(logits, token, self._sampling.log_probabilities)
        self._ids.append(token)
        self._fit()
        return drawn

    def _fit(self) -> None:
        if len(self._ids) - self._begin > self._context:
            self._begin = len(self._ids) - max(1, self._context // 2)


def generate(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    stop: Collection[int] = frozenset(),
    reader: Reader | None = None,
    **how: Unpack[SamplingOptions],
) -> Iterator[int]:
    """Yield up to max_tokens new tokens that continue the prompt, as they come.

    A token of ``stop`` ends the generation and is not yielded. Of a prompt longer than the context
    only the end is read. For temperature, seed and the like see ``toynn.generation.Sampling``. With
    the ``reader`` of an earlier generation, a prompt that continues it is read from there on.

    Raises ConfigError for values out of range, NonFiniteError if the model's logits are not finite.
    """
    drawn = draw(engine, prompt_ids, max_tokens, Sampling(**how), stop=stop, reader=reader)
    return (each.id for each in drawn)


def draw(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    *,
    stop: Collection[int] = frozenset(),
    reader: Reader | None = None,
) -> Iterator[Drawn]:
    """Yield the tokens of ``generate`` with their log probabilities.

    Raises ConfigError for values out of range, NonFiniteError if the model's logits are not finite.
    """
    drawing = Drawing(prompt_ids, max_tokens, sampling, context=engine.context, stop=stop)
    reader = Reader(engine) if reader is None else reader

    def tokens() -> Iterator[Drawn]:
        while not drawing.ended:
            drawn = drawing.take(reader.read(drawing.seen))
            if drawn is not None:
                yield drawn

    return tokens()


def _told(logits: NDArray[np.float32], token: int, count: int | None) -> Drawn:
    if count is None:
        return Drawn(token, float("nan"), ())
    expected = log_softmax(logits)
    order = np.argsort(-expected, kind="stable")[:count].tolist()
    return Drawn(token, float(expected[token]), tuple((id, float(expected[id])) for id in order))


def sample(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    stop: Collection[int] = frozenset(),
    **how: Unpack[SamplingOptions],
) -> list[int]:
    """Return the tokens of ``generate`` as a list. Raises its errors."""
    return list(generate(engine, prompt_ids, max_tokens, stop=stop, **how))
