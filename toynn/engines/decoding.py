"""Read sequences piece by piece: the tapes of generation, with a cache of keys and values.

    prefill: a chunk of a prompt a run             the forward pass of training, but attention
    decode:  one token a run                       appends to the cache, and reads all of it

The last chunk of a prompt is padded on the right. The rows of the padding go into the cache after
the tokens' rows, and are overwritten before anything reads them. So the cache has room for a chunk
more than the longest sequence. A recurrent state is not overwritten; it is told how many tokens are
valid. The head computes only the last token's row.

Several sequences are read together, each with its own past. A step of B sequences multiplies B
rows, and reads all weights once. So B rows take far less than B times as long as one row. While
some sequences read chunks of their prompts, others read one token and padding, so larger batches
have shorter chunks.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.engines.engine import Inputs, Recorded
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.graph.tape import Tensor
from toynn.nn import Caches
from toynn.numerics import checks
from toynn.session import Session

__all__ = ["CHUNK", "BatchDecoder", "Decoder", "Decoders"]

CHUNK = 64  # rows of a run that reads prompts: enough to multiply at full speed
LEAST = 4  # the fewest tokens of a sequence in a chunk
MOST_KEPT = 4  # pairs (batch, room) whose keys and values stay in memory

#: The latest decoder of each pair (batch, room), the least recently used first.
Decoders = OrderedDict[tuple[int, int], "BatchDecoder"]


@dataclass
class _Sequence:
    """The ids read so far, and whether they were read as a long sequence (see Model.is_long)."""

    ids: list[Any] = field(default_factory=list)
    long: bool = False


class BatchDecoder:
    """Several numbered sequences that an engine reads together, piece by piece.

    Tapes and memory belong to a pair: the number of sequences, and the room of each. A new batch of
    a pair takes over from the one before. Of more than MOST_KEPT pairs the least recently used is
    dropped: its memory is freed, and its sequences end.
    """

    def __init__(self, engine: Any, batch: int, room: int) -> None:
        """Begin ``batch`` sequences of up to ``room`` tokens; this ends earlier ones of that pair.

        Raises ConfigError for a number or a room out of range.
        """
        context = engine.config.context
        if batch < 1 or not 0 < room <= context:
            raise ConfigError(
                f"batch_decoder: expected 1 or more sequences, with room for 1 to {context} "
                f"tokens, the context; got {batch} and {room}"
            )
        self._engine, self._key = engine, (batch, room)
        self._session: Session = engine.session
        self._decoders: Decoders = engine.decoders
        self._caches: dict[str, Tensor] = {}  # keys and values of the tapes, or recurrent states
        self.chunk = max(LEAST, CHUNK // batch)  # the most tokens of a sequence in one run
        self._sequences = [_Sequence() for _ in range(batch)]
        with self._session.exclusively("decoder()"):
            if self._key in self._decoders:
                self._caches = self._decoders.pop(self._key)._caches
            self._decoders[self._key] = self
            while len(self._decoders) > MOST_KEPT:
                oldest = next(iter(self._decoders))
                self._session.release(self._decoders[oldest]._caches.values())
                del self._decoders[oldest]

    def past(self, number: int) -> int:
        """Return how many tokens of a sequence were read so far."""
        return len(self._sequences[number].ids)

    def rewind(self, number: int, past: int = 0) -> None:
        """Forget all but the first ``past`` tokens of a sequence; 0 starts it again.

        Raises ConfigError for more tokens than were read. Models with a recurrent state cannot
        rewind to any other number than 0: that raises ConfigError too.
        """
        sequence = self._sequences[number]
        if not 0 <= past <= len(sequence.ids):
            raise ConfigError(
                f"Decoder.rewind: expected 0 to {len(sequence.ids)} tokens, which were read; got "
                f"{past}"
            )
        if past and not self._rewinds():
            raise ConfigError(
                "Decoder.rewind: this model has a recurrent state, which cannot be rewound: begin "
                "again"
            )
        self._sequences[number] = _Sequence(sequence.ids[:past], sequence.long and past > 0)

    def _rewinds(self) -> bool:
        """Return whether the only caches are keys and values, so that the batch can rewind."""
        return all(name.endswith(("keys", "values")) for name in self._caches)

    def read(self, pieces: Mapping[int, ArrayLike]) -> dict[int, NDArray[np.float32]]:
        """Read the next piece of some sequences; return the logits (V,) after each piece.

        Training between two calls does not change what was read before. A sequence that becomes
        long for its model is read again from its start. If a read fails halfway or is interrupted,
        sequences with only keys and values are as before it. Sequences with a recurrent state, or
        newly long ones, start again: check ``past``.

        Raises what ``check_unchanged`` does. Raises ShapeError for a piece that is empty, too long
        for the room, or not of whole numbers. Raises LabelError for an unknown token. Raises
        LifecycleError if another decoder of this size was begun on the engine, if MOST_KEPT other
        sizes were used since, or if another thread uses the engine. Nothing is read then.
        """
        with self._session.exclusively("Decoder.read()", signals=True):
            return self._read(pieces)

    def _read(self, pieces: Mapping[int, ArrayLike]) -> dict[int, NDArray[np.float32]]:
        if self._decoders.get(self._key) is not self:
            raise LifecycleError(
                "Decoder.read after another decoder() of the same engine. An engine keeps one "
                f"batch of each size, and {MOST_KEPT} sizes: begin again, or "
                "make a second engine"
            )
        self._decoders.move_to_end(self._key)
        new = {number: self._checked(number, ids) for number, ids in pieces.items()}
        before = {number: self._sequences[number] for number in new}
        waiting, long = dict(new), dict.fromkeys(new, False)
        past = [self.past(number) for number in range(len(self._sequences))]
        for number, ids in new.items():
            read = before[number].ids
            long[number] = self._engine.is_long(len(read) + ids.size)
            again = long[number] != before[number].long
            if again:
                waiting[number], past[number] = np.append(np.array(read, ids.dtype), ids), 0
            if again or not self._rewinds():
                self._sequences[number] = _Sequence()  # until all is read
        logits: dict[int, NDArray[np.float32]] = {}
        for kind in (False, True):
            alike = {number: ids for number, ids in waiting.items() if long[number] is kind}
            while alike:
                chunks = {number: ids[: self.chunk] for number, ids in alike.items()}
                logits |= self._run(chunks, past, long=kind)
                for number, ids in chunks.items():
                    past[number] += ids.size
                alike = {n: ids[self.chunk :] for n, ids in alike.items() if ids.size > self.chunk}
        for number, ids in new.items():
            self._sequences[number] = _Sequence(before[number].ids + ids.tolist(), long[number])
        return logits

    def _checked(self, number: int, piece: ArrayLike) -> NDArray[Any]:
        ids, past, (_, room) = np.asarray(piece), self.past(number), self._key
        if ids.ndim != 1 or not 0 < ids.size <= room - past:
            raise ShapeError(
                f"Decoder.read: expected 1 to {room - past} ids in a flat array, as {past} of a "
                f"context of {room} are read; got {ids.shape}"
            )
        checks.converted("tokens", ids, ids.shape, "i32")
        checks.Below(self._engine.config.vocab)("tokens", ids)
        return ids.astype(np.int32)

    def _run(
        self, pieces: Mapping[int, NDArray[Any]], past: Sequence[int], *, long: bool
    ) -> dict[int, NDArray[np.float32]]:
        """Read at most a chunk of some sequences of one kind, after their past; return logits."""
        engine, (batch, room) = self._engine, self._key
        length = 1 if all(ids.size == 1 for ids in pieces.values()) else self.chunk
        key = ("reading", batch, room, length, long)
        reading = self._session.record(key, lambda: self._record(length, long=long))
        tokens = np.zeros((batch, length), np.int32)
        last, counts = np.arange(batch) * length, np.zeros(batch, np.int32)
        for number, ids in pieces.items():
            tokens[number, : ids.size] = ids
            last[number] += ids.size - 1
            counts[number] = ids.size
        positions = np.array(past)[:, None] + np.arange(length)
        positions = np.minimum(positions, engine.config.context - 1)
        values: Inputs = {"tokens": tokens.reshape(-1), "positions": positions.reshape(-1)}
        engine.measure_norms()
        values |= {"past": np.array(past), "last": last, "counts": counts}
        logits = engine.compute(reading, values)
        engine.check_unchanged()  # the mapped weights must still be the file that was opened
        return {number: logits[number] for number in pieces}

    def _record(self, length: int, *, long: bool) -> Recorded:
        """Record logits (B, V) of the ``last`` rows, from B ``counts`` of tokens after the past."""
        engine, s, (batch, room) = self._engine, self._session, self._key
        past, last = s.input("past", (batch,), "i32"), s.input("last", (batch,), "i32")
        for name in ("tokens", "positions"):
            s.input(name, (batch * length,), "i32")
        counts, label = s.input("counts", (batch,), "i32"), f"{batch} x {room}: "
        caches = Caches(s, past, counts, room + self.chunk, label, self._caches)
        layers = engine.layers(batch, caches=caches, long=long)
        x = engine.final(layers, last)
        logits = engine.model.logits(layers, engine.config, engine.options, x)
        return Recorded(tape=s.tape, logits=s.output(logits))


class Decoder:
    """One sequence that an engine reads piece by piece."""

    def __init__(self, batch: BatchDecoder) -> None:
        self._batch = batch

    @property
    def past(self) -> int:
        """Tokens read so far."""
        return self._batch.past(0)

    def rewind(self, past: int = 0) -> None:
        """Forget all but the first tokens. Raises ConfigError as ``BatchDecoder.rewind``."""
        self._batch.rewind(0, past)

    def read(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read the tokens that come next; return the logits (V,) of the one after them.

        Raises ShapeError, LabelError and LifecycleError as ``BatchDecoder.read`` does.
        """
        return self._batch.read({0: ids})[0]
