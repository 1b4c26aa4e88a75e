"""The batch: one object from the data to the engine, for every recipe."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toynn.errors import ShapeError
from toynn.numerics.checks import IGNORED

__all__ = ["IGNORED", "Batch"]

#: PyTorch's names of what a batch of tokens has.
NAMES = ("input_ids", "labels", "attention_mask", "position_ids")


def _segments(positions: Any) -> Any:
    """Return the segments (B*T,) of a table whose positions start again within a row; else None."""
    begins = positions == 0
    if not begins[..., 1:].any():
        return None
    begins[..., 0] = True
    rows = np.arange(begins.size, dtype=np.int32)
    return np.maximum.accumulate(np.where(begins.reshape(-1), rows, 0))


def _expected(got: Any) -> str:
    """Return what is said of something that is no batch."""
    said = f"{type(got).__name__}"
    if isinstance(got, Mapping):
        said += f" with {', '.join(map(repr, list(got)[:6]))}"
    elif isinstance(got, tuple | list):
        said += f" of {len(got)}: {', '.join(type(each).__name__ for each in got[:6])}"
    return (
        f"expected a batch; got {said}. For example Batch(ids[:-1], None, ids[1:]) of "
        f"toynn.data.batch, a pair of such arrays (inputs, labels), or "
        f'{{"input_ids": ids, "labels": ids, "attention_mask": mask}}, each (B, T)'
    )


@dataclass(eq=False)
class Batch:
    """One batch, not to be changed: token sequences, packed examples, preferences, or pictures.

    The engine checks the arrays. ``Batch.of`` makes one of arrays in the order of the fields.

    Attributes
    ----------
    inputs
        Token ids, int (n,): whole sequences one after the other, or packed examples. Of pictures
        their pixels or patches: see ``ViTEngine``.
    positions
        The position of each token, int (n,); None: 0..T-1 in each sequence. Of pictures, which
        token the head reads of each (upstream: ``cls_idx``); None: the class token.
    labels
        Int, one for each token or picture, -100 where it does not count; or dense floats, a row of
        classes for each.
    segments
        Of packed examples: of each token the number of the first token of its example, int (n,).
    bounds
        Of preferences: where, among the rows whose label counts, each prompt and each completion
        begins and the last one ends, int (2 S + 1,). See ``toynn.engines.preference``.
    wanted
        Of KTO: 1 for each completion that is wanted, 0 for the others, int (S,).
    width
        Tokens of a row, where inputs came as a table (B, T); 0: rows of the engine's ``t_seq``.
    room
        The tokens that a packed batch has room for: B*T of B rows, filled as well as may be.
    source
        The name of the source, of a validation batch out of several.
    """

    inputs: Any
    positions: Any
    labels: Any
    segments: Any = None
    bounds: Any = None
    wanted: Any = None
    width: int = field(default=0, kw_only=True)
    room: int = field(default=0, kw_only=True)
    source: str | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, batch: "Batch | ArrayLike | Iterable[Any]", *arrays: ArrayLike | None) -> "Batch":
        """Return a batch as it is; or one of arrays, in the order of the fields, or in a tuple.

        Two arrays are inputs and labels, (B, T) both, or as the fields are. A mapping has
        PyTorch's names: input_ids and labels, (B, T) or (T,), where labels are *not* shifted
        (without them, input_ids are), and perhaps attention_mask, which is 0 behind the tokens of
        a row, and position_ids. Where positions start again at 0 within a row, a new example
        begins; examples do not see one another.

        Raises TypeError, with an example, for what is none of these, ShapeError for shapes that
        differ, and padding before tokens.
        """
        if isinstance(batch, Batch):
            return batch.read()
        if arrays:  # the engine says what is wrong with them
            given: Any = (batch, *arrays)
            return cls(*(None if each is None else np.asarray(each) for each in given))
        if isinstance(batch, Mapping):
            return cls._named(batch)
        given = batch
        if not isinstance(given, tuple | list) or not 2 <= len(given) <= 6:
            raise TypeError(_expected(given))
        try:
            found = [None if each is None else np.asarray(each) for each in given]
        except ValueError as error:
            raise TypeError(_expected(given)) from error
        if any(each is not None and each.dtype.kind not in "iufb" for each in found):
            raise TypeError(_expected(given))
        if len(found) == 2:
            found.insert(1, None)
        ids, labels = found[0], found[2]
        if ids is None or ids.ndim != 2 or labels is None or labels.shape != ids.shape:
            return cls(*found)
        flat = (each if each is None or each.ndim != 2 else each.reshape(-1) for each in found)
        return cls(*flat, width=ids.shape[1])

    @classmethod
    def _named(cls, batch: Mapping[str, Any]) -> "Batch":
        """Return a batch of arrays that have PyTorch's names."""
        unknown = [name for name in batch if name not in NAMES]
        if "input_ids" not in batch or unknown:
            raise TypeError(_expected(batch))
        arrays = {name: np.asarray(value) for name, value in batch.items() if value is not None}
        ids = arrays["input_ids"]
        if any(each.dtype.kind not in "iub" for each in arrays.values()):
            raise TypeError(_expected(batch))
        if ids.ndim not in (1, 2) or any(each.shape != ids.shape for each in arrays.values()):
            shapes = ", ".join(f"{name} {each.shape}" for name, each in arrays.items())
            raise ShapeError(f"batch: expected arrays of one shape, (B, T) or (T,); got {shapes}")
        labels = arrays.get("labels", ids)
        following = np.full(ids.shape, IGNORED, np.int64)  # the engine checks them
        following[..., :-1] = labels[..., 1:]
        mask = arrays.get("attention_mask")
        if mask is not None:
            if (np.diff((mask != 0).astype(np.int8), axis=-1) > 0).any():
                raise ShapeError(
                    "batch: attention_mask: expected padding behind the tokens of a row; got some "
                    "before them: pad on the right"
                )
            following[..., :-1][mask[..., 1:] == 0] = IGNORED
        positions = arrays.get("position_ids")
        segments = None if positions is None else _segments(positions)
        if positions is not None and segments is not None:  # no example's label is another's token
            following[..., :-1][positions[..., 1:] == 0] = IGNORED
        return cls(
            ids.reshape(-1),
            None if positions is None else positions.reshape(-1),
            following.reshape(-1),
            segments,
            width=ids.shape[-1],
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield inputs, positions, labels; and segments, bounds, wanted, as far as there are."""
        yield from (self.inputs, self.positions, self.labels)
        more = (self.segments, self.bounds, self.wanted)
        yield from (array for array in more if array is not None)

    def read(self) -> "Batch":
        """Return the batch with its arrays: itself, unless it is one that is read when needed."""
        return self

    @cached_property
    def rows(self) -> int:
        """How many labels count; of preferences, how many pairs or single completions there are."""
        if self.bounds is not None:
            return self.examples // 2 if self.wanted is None else self.examples
        labels = np.asarray(self.labels)
        if labels.ndim == 1 and labels.dtype.kind == "f":  # one picture's, dense
            return int(labels.any())
        return int(np.count_nonzero(labels.any(axis=1) if labels.ndim == 2 else labels != IGNORED))

    @property
    def tokens(self) -> int:
        """How many tokens are read."""
        return len(self.inputs)

    @property
    def examples(self) -> int:
        """How many examples a packed batch has; of preferences, how many sequences."""
        if self.bounds is not None:
            return len(self.bounds) // 2
        return int(np.count_nonzero(self.segments == np.arange(self.tokens)))
