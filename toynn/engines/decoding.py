"""Read sequences piece by piece: the tapes of generation, with a cache of keys and values.

    prefill: a chunk of a prompt a run             the forward pass of training, but attention
    decode:  one token a run                       appends to the cache, and reads all of it

The last chunk of a prompt is padded on the right. The rows of the padding go into the cache after
the tokens' rows, and are overwritten before anything reads them. So the cache has room for a chunk
more than the longest sequence. A recurrent state is not overwritten; it is told how many tokens are
valid. The head computes only the last token's row.

Several sequences are read together, each with its own past. A step of B sequences multiplies B
rows, and reads all weights once. So B rows take far less than B times as long as one row. Products
are by row (see _product.pxd): a sequence's bits depend neither on the others nor on their number.
Longer pieces are read one after another in a place of their own, and copied from there. So many
samples of a prompt read it once.
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
from toynn.ops import CACHE_ROWS
from toynn.session import Session

CHUNK = 64  # rows of a run that reads prompts: enough to multiply at full speed
MOST_KEPT = 4  # pairs (batch, room) whose keys and values stay in memory
_APPENDED = ("keys", "values")  # how the names of caches end to which rows are appended

#: The latest decoder of each (places, room), the least recently used first.
Decoders = OrderedDict[tuple[int, int], "BatchDecoder"]


@dataclass
class _Sequence:
    """The ids read so far, and whether they were read as a long sequence (see Model.is_long)."""

    ids: list[Any] = field(default_factory=list)
    long: bool = False


@dataclass
class _Alone:
    """What the first place holds, if nothing was read there since: ids, and what came of them."""

    ids: list[Any] = field(default_factory=list)
    changes: int = -1  # of the weights, before they were read
    logits: Any = None


class BatchDecoder:
    """Several numbered sequences that an engine reads together, piece by piece.

    Tapes and memory belong to a pair: the number of sequences, and the room of each. A new batch of
    a pair takes over from the one before. Of more than MOST_KEPT pairs the least recently used is
    dropped: its memory is freed, and its sequences end.
    """

    def __init__(self, engine: Any, batch: int, room: int, *, alone: bool = False) -> None:
        """Begin ``batch`` sequences of up to ``room`` tokens; this ends earlier ones of that pair.

        A sequence that is read ``alone`` needs no second place, and its products no fixed order.
        Raises ConfigError for a number or a room out of range.
        """
        context = engine.config.context
        if batch < 1 or not 0 < room <= context:
            raise ConfigError(
                f"batch_decoder: expected 1 or more sequences, with room for 1 to {context} "
                f"tokens, the context; got {batch} and {room}"
            )
        self._engine, self._room, self._batch = engine, room, batch
        #: The caches' places: the first is for pieces that are read alone.
        self._first = 0 if alone else 1
        self._key = (batch + self._first, room)
        self._session: Session = engine.session
        self._decoders: Decoders = engine.decoders
        self._caches: dict[str, Tensor] = {}  # keys and values of the tapes, or recurrent states
        self._sequences = [_Sequence() for _ in range(batch)]
        self._alone = _Alone()
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

    def copy(self, source: int, target: int) -> None:
        """Let a sequence become a copy of another one; what it was is forgotten."""
        with self._session.exclusively("Decoder.copy()"):
            self._sequences[target] = _Sequence()
            sequence = self._sequences[source]
            self._copy(self._first + source, self._first + target, len(sequence.ids))
            self._sequences[target] = _Sequence(list(sequence.ids), sequence.long)

    def _copy(self, source: int, target: int, past: int) -> None:
        """Copy a place's states, and its first ``past`` keys and values, to another place."""
        for name, tensor in self._caches.items():
            parts, size = 1, tensor.size // self._key[0]
            count = size
            if name.endswith(_APPENDED):  # (places, KV, S, D), in blocks of rows
                _, parts, rows, _ = tensor.shape
                size //= parts
                count = -(-past // CACHE_ROWS) * CACHE_ROWS * (size // rows)
            for part in range(parts):
                start, end = (size * (place * parts + part) for place in (source, target))
                self._session.copy(tensor, start, end, count)

    def _rewinds(self) -> bool:
        """Return whether the only caches are keys and values, so that the batch can rewind."""
        return all(name.endswith(_APPENDED) for name in self._caches)

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
        after: dict[int, _Sequence] = {}
        logits: dict[int, NDArray[np.float32]] = {}
        together: dict[bool, dict[int, NDArray[Any]]] = {False: {}, True: {}}
        for number, ids in new.items():
            read = before[number].ids
            long = self._engine.is_long(len(read) + ids.size)
            after[number] = _Sequence(read + ids.tolist(), long)
            again = bool(read) and long != before[number].long
            if again or not self._rewinds():
                self._sequences[number] = _Sequence()  # until all is read
            if self._first and ids.size == 1 and not again:
                together[long][number] = ids
            else:
                past = 0 if again else len(read)
                logits[number] = self._read_alone(number, after[number], past)
        for long, alike in together.items():
            if alike:
                count = min(self._batch, 4 ** ((max(alike).bit_length() + 1) // 2))  # few tapes
                # a padding row of the others comes after all that they hold
                held = [after.get(n, self._sequences[n]).ids for n in range(count)]
                pasts = [len(ids) - (n in alike) for n, ids in enumerate(held)]
                logits |= self._run(alike, pasts, self._first, long=long)
        for number, sequence in after.items():
            self._sequences[number] = sequence
        return logits

    def _read_alone(self, number: int, sequence: _Sequence, past: int) -> NDArray[np.float32]:
        """Read a sequence's ids from ``past`` on in the first place; return the last logits."""
        place, known, changes = self._first + number, self._alone, self._session.changes
        if not (known.ids == sequence.ids and known.changes == changes and not past):
            self._alone = _Alone()
            if self._first and past:
                self._copy(place, 0, past)
            ids = np.array(sequence.ids, np.int32)
            for start in range(past, ids.size, CHUNK):
                chunk = {0: ids[start : start + CHUNK]}
                logits = self._run(chunk, [start], 0, long=sequence.long)[0]
            self._alone = _Alone(list(sequence.ids), changes if self._first else -1, logits)
        if self._first:
            self._copy(0, place, len(sequence.ids))
        return self._alone.logits  # type: ignore[no-any-return]

    def _checked(self, number: int, piece: ArrayLike) -> NDArray[Any]:
        ids, past, room = np.asarray(piece), self.past(number), self._room
        if ids.ndim != 1 or not 0 < ids.size <= room - past:
            raise ShapeError(
                f"Decoder.read: expected 1 to {room - past} ids in a flat array, as {past} of a "
                f"context of {room} are read; got {ids.shape}"
            )
        checks.converted("tokens", ids, ids.shape, "i32")
        checks.Below(self._engine.config.vocab)("tokens", ids)
        return ids.astype(np.int32)

    def _run(
        self, pieces: Mapping[int, NDArray[Any]], past: Sequence[int], first: int, *, long: bool
    ) -> dict[int, NDArray[np.float32]]:
        """Read at most a chunk of some sequences of one kind, after their past; return logits.

        ``first`` is the place of sequence 0. All places of ``past`` are computed.
        """
        engine, count = self._engine, len(past)
        length = 1 if all(ids.size == 1 for ids in pieces.values()) else CHUNK
        key = ("reading", self._key, first, count, length, long)
        record = lambda: self._record(first, count, length, long=long)  # noqa: E731
        reading = self._session.record(key, record)
        tokens = np.zeros((count, length), np.int32)
        last, counts = np.arange(count) * length, np.zeros(count, np.int32)
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

    def _record(self, first: int, batch: int, length: int, *, long: bool) -> Recorded:
        """Record logits (B, V) of the ``last`` rows, from B ``counts`` of tokens after the past."""
        engine, s, (places, room) = self._engine, self._session, self._key
        past, last = s.input("past", (batch,), "i32"), s.input("last", (batch,), "i32")
        for name in ("tokens", "positions"):
            s.input(name, (batch * length,), "i32")
        counts, label = s.input("counts", (batch,), "i32"), f"{places} x {room}: "
        caches = Caches(s, past, counts, room + CHUNK, places, first, label, self._caches)
        s.by_row = first > 0
        try:
            layers = engine.layers(batch, caches=caches, long=long)
            x = engine.final(layers, last)
            logits = engine.model.logits(layers, engine.config, engine.options, x)
        finally:
            s.by_row = False
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
