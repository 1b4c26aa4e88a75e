"""Reading a sequence piece by piece: the tapes of generation, over a cache of keys and values.

    prefill: CHUNK tokens of a prompt a run        the forward pass of training, but attention
    decode:  one token a run                       adds to a cache, and sees what is in it

The last chunk of a prompt is filled up on the right. What is computed for the filling goes into the
cache behind the tokens' own rows, and is written over before anything sees it; so the cache has
room for CHUNK - 1 rows beyond the context. The head works on the last token's row alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.engines._sequence import C, SequenceEngine
from toynn.errors import LifecycleError, ShapeError
from toynn.tape import Tape, Tensor

__all__ = ["CHUNK", "Decoder", "DecodingEngine"]

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


class DecodingEngine(SequenceEngine[C]):
    """A sequence engine that also reads a sequence on where it stopped, for generation."""

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self._memory: dict[str, Tensor] = {}  # keys and values of each block, by name
        self._caches: dict[str, ops.KVCache] = {}  # those of the tape that is being recorded
        self._decoders = 0  # made so far

    def decoder(self) -> "Decoder":
        """Begin a sequence, to be read piece by piece; the one begun before ends with that.

        The keys and values of ``context`` tokens get their memory when the first token is read,
        and keep it.
        """
        self._session_for("decoder()")
        self._decoders += 1
        return Decoder(self, self._decoders)

    def _reading(self, length: int) -> Reading:
        """Return the tape that reads ``length`` tokens."""
        return self.session.record(("reading", length), lambda: self._record_reading(length))

    def _record_reading(self, length: int) -> Reading:
        s, cfg = self.session, self.config
        past, last = s.input("past", (1,), "i32"), s.input("last", (1,), "i32")
        tokens = s.input("tokens", (length,), "i32")
        positions = s.input("positions", (length,), "i32")
        keys, values = ops.KVCache.shapes(1, cfg.n_kv_heads, cfg.d_head, cfg.context + CHUNK - 1)
        self._caches = {
            block: ops.KVCache(
                self._kept(f"{block}.keys", keys), self._kept(f"{block}.values", values), past
            )
            for block in (f"blk.{n}" for n in range(cfg.n_layers))
        }
        try:
            x = self._record_forward(tokens, positions, batch=1)
        finally:
            self._caches = {}
        logits = s.output(self._record_head(ops.embedding(s, x, last)))
        return Reading(s.tape, tokens, positions, past, last, logits)

    def _kept(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the part of the memory with this name, which all tapes share."""
        if name not in self._memory:
            self._memory[name] = self.session.persistent(name, shape)
        return self._memory[name]


class Decoder:
    """One sequence that an engine reads piece by piece."""

    def __init__(self, engine: DecodingEngine[Any], number: int) -> None:
        self._engine, self._number = engine, number
        self.past = 0  # tokens read so far

    def read(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read the tokens that come next; return the logits (V,) of the one after them.

        What was read stays as it was read: a step of training between two calls does not change
        it. Raises ShapeError if there are none, or more than the context has room for;
        LifecycleError if another sequence was begun on the engine since.
        """
        ids, context = np.asarray(ids), self._engine.context
        if self._engine._decoders != self._number:
            raise LifecycleError(
                "Decoder.read after another decoder() of the same engine, which reads one sequence "
                "at a time: begin again, or make a second engine"
            )
        if ids.ndim != 1 or not 0 < ids.size <= context - self.past:
            raise ShapeError(
                f"Decoder.read: ids must be flat, 1 to {context - self.past} of them, as "
                f"{self.past} of a context of {context} are read; got {ids.shape}"
            )
        for start in range(0, ids.size, CHUNK):
            reading = self._run(ids[start : start + CHUNK])
        logits: NDArray[np.float32] = self._engine.session.download(reading.logits)[0]
        return logits

    def _run(self, ids: NDArray[Any]) -> Reading:
        s, length = self._engine.session, 1 if ids.size == 1 else CHUNK
        reading = self._engine._reading(length)
        tokens = np.zeros(length, ids.dtype)
        tokens[: ids.size] = ids
        positions = np.minimum(np.arange(self.past, self.past + length), self._engine.context - 1)
        s.upload(reading.tokens, tokens)
        s.upload(reading.positions, positions)
        s.upload(reading.past, [self.past])
        s.upload(reading.last, [ids.size - 1])
        s.run("loss", tape=reading.tape)
        self.past += ids.size
        return reading
