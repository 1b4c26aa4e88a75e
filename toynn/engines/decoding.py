"""Reading a sequence piece by piece: the tapes of generation, over a cache of keys and values.

    prefill: CHUNK tokens of a prompt a run        the forward pass of training, but attention
    decode:  one token a run                       adds to a cache, and sees what is in it

The last chunk of a prompt is filled up on the right. What is computed for the filling goes into the
cache behind the tokens' own rows, and is written over before anything sees it; so the cache has
room for CHUNK - 1 rows beyond the context. The head works on the last token's row alone.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import LifecycleError, ShapeError
from toynn.graph.tape import Tape, Tensor
from toynn.models import SequenceModel
from toynn.nn import Caches, Layers
from toynn.options import RecipeOptions
from toynn.session import Session

__all__ = ["CHUNK", "Decoder", "Decoding"]

CHUNK = 64  # tokens of a prompt a run: enough to multiply at full speed


@dataclass(frozen=True)
class Reading:
    """Handles of a tape that reads the tokens which come next in a sequence."""

    tape: Tape
    tokens: Tensor
    positions: Tensor
    past: Tensor
    last: Tensor  # the row whose logits are wanted
    logits: Tensor  # (1, V)


class Model(Protocol):
    """What is asked of an engine."""

    config: Any
    options: RecipeOptions

    @property
    def session(self) -> Session:
        """What owns its weights."""

    @property
    def model(self) -> SequenceModel[Any]:
        """Its architecture."""

    def layers(self, batch: int, *, caches: Caches, long: bool = False) -> Layers:
        """Return what a forward pass over the weights is recorded with."""


class Decoding:
    """The tapes by which an engine reads sequences, one at a time, and what they remember."""

    def __init__(self, engine: Model) -> None:
        self.engine = engine
        self.begun = 0  # sequences so far
        self._kept: dict[str, Tensor] = {}  # keys and values, which all tapes share

    def begin(self) -> "Decoder":
        """Begin a sequence; the one begun before ends with that."""
        self.begun += 1
        return Decoder(self, self.begun)

    def reading(self, length: int, *, long: bool = False) -> Reading:
        """Return the tape that reads ``length`` tokens, of a sequence that is ``long``."""
        record = self.engine.session.record
        return record(("reading", length, long), lambda: self._record(length, long))

    def _record(self, length: int, long: bool) -> Reading:
        engine, s, cfg = self.engine, self.engine.session, self.engine.config
        past, last = s.input("past", (1,), "i32"), s.input("last", (1,), "i32")
        tokens = s.input("tokens", (length,), "i32")
        positions = s.input("positions", (length,), "i32")
        caches = Caches(s, past, cfg.context + CHUNK - 1, self._kept)
        layers = engine.layers(1, caches=caches, long=long)
        x = layers.rows(engine.model.forward(layers, cfg, tokens, positions), last)
        x = engine.model.last(layers, cfg, x)
        logits = s.output(engine.model.logits(layers, cfg, engine.options, x))
        return Reading(s.tape, tokens, positions, past, last, logits)


class Decoder:
    """One sequence that an engine reads piece by piece."""

    def __init__(self, decoding: Decoding, number: int) -> None:
        self._decoding, self._engine, self._number = decoding, decoding.engine, number
        self.past = 0  # tokens read so far
        self._ids: NDArray[Any] = np.empty(0, np.int32)  # which these are
        self._long = False

    def read(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read the tokens that come next; return the logits (V,) of the one after them.

        What was read stays as it was read: a step of training between two calls does not change
        it. All of it is read again where a sequence becomes one that its model takes for a long
        one. Raises ShapeError if there are none, or more than the context has room for;
        LifecycleError if another sequence was begun on the engine since.
        """
        ids, context = np.asarray(ids), self._engine.config.context
        if self._decoding.begun != self._number:
            raise LifecycleError(
                "Decoder.read after another decoder() of the same engine, which reads one sequence "
                "at a time: begin again, or make a second engine"
            )
        if ids.ndim != 1 or not 0 < ids.size <= context - self.past:
            raise ShapeError(
                f"Decoder.read: ids must be flat, 1 to {context - self.past} of them, as "
                f"{self.past} of a context of {context} are read; got {ids.shape}"
            )
        self._ids = np.append(self._ids, ids)
        long = self._engine.model.is_long(self._engine.config, self._ids.size)
        if long != self._long:
            self._long, self.past, ids = long, 0, self._ids
        for start in range(0, ids.size, CHUNK):
            reading = self._run(ids[start : start + CHUNK])
        logits: NDArray[np.float32] = self._engine.session.download(reading.logits)[0]
        return logits

    def _run(self, ids: NDArray[Any]) -> Reading:
        s, length = self._engine.session, 1 if ids.size == 1 else CHUNK
        reading = self._decoding.reading(length, long=self._long)
        tokens = np.zeros(length, ids.dtype)
        tokens[: ids.size] = ids
        positions = np.minimum(
            np.arange(self.past, self.past + length), self._engine.config.context - 1
        )
        s.upload(reading.tokens, tokens)
        s.upload(reading.positions, positions)
        s.upload(reading.past, [self.past])
        s.upload(reading.last, [ids.size - 1])
        s.run("loss", tape=reading.tape)
        self.past += ids.size
        return reading
