"""The batch: what data hand to the engine, in every recipe."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toynn.errors import ShapeError
from toynn.numerics.checks import IGNORED

__all__ = ["IGNORED", "Batch"]

#: PyTorch's names for the arrays of a batch of tokens.
NAMES = ("input_ids", "labels", "attention_mask", "position_ids")


def _segments(positions: Any) -> Any:
    """Return segments (B*T,) if positions restart at 0 within a row; else None."""
    begins = positions == 0
    if not begins[..., 1:].any():
        return None
    begins[..., 0] = True
    rows = np.arange(begins.size, dtype=np.int32)
    return np.maximum.accumulate(np.where(begins.reshape(-1), rows, 0))


def _expected(got: Any) -> str:
    """Return the error message for an object that is not a batch."""
    kind = f"{type(got).__name__}"
    if isinstance(got, Mapping):
        kind += f" with {', '.join(map(repr, list(got)[:6]))}"
    elif isinstance(got, tuple | list):
        kind += f" of {len(got)}: {', '.join(type(each).__name__ for each in got[:6])}"
    return (
        f"expected a batch; got {kind}. For example Batch(ids[:-1], None, ids[1:]) of "
        f"toynn.data.batch, a pair of such arrays (inputs, labels), or "
        f'{{"input_ids": ids, "labels": ids, "attention_mask": mask}}, each (B, T)'
    )


@dataclass(eq=False)
class Batch:
    """One batch: token sequences, packed examples, preferences, or pictures. Do not change it.

    The engine checks the arrays. ``Batch.of`` makes a batch from arrays in the order of the fields.

    Attributes
    ----------
    inputs
        Token ids, int (n,): whole sequences one after the other, or packed examples. For pictures,
        pixels or patches: see ``ViTEngine``.
    positions
        The position of each token, int (n,); None: 0..T-1 in each sequence. For pictures, the token
        that the head reads (upstream: ``cls_idx``); None: the class token.
    labels
        Int, one for each token or picture, -100 where there is no loss; or dense floats, a row of
        class probabilities for each.
    segments
        For packed examples: the index of the first token of each token's example, int (n,).
    bounds
        For preferences, int (2 S + 1,): where each prompt and each completion begins among the
        tokens with loss, and where the last one ends. See ``toynn.engines.preference``.
    wanted
        For KTO: 1 for each wanted completion, 0 for the others, int (S,).
    width
        Tokens in a row, if inputs came as an array (B, T); 0: rows of the engine's ``t_seq``.
    room
        The tokens that a packed batch has room for: B*T for B rows.
    source
        For a validation batch of a mixture: the name of its source.
    origin
        For each token, where its label is in the data: an index into all tokens of them.
    teacher
        Returns what a teacher says of the checked batch's rows with loss: see
        ``toynn.engines.teacher``. The engine calls it, so only batches that are trained on cost it.
    writer
        Returns the batch to train on in place of this one, which ``read`` calls.
    figures
        Figures to report of a batch that is trained on: (sum, count) of each.
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
    origin: Any = field(default=None, kw_only=True)
    teacher: Callable[["Batch"], Any] | None = field(default=None, kw_only=True)
    writer: Callable[["Batch"], "Batch"] | None = field(default=None, kw_only=True)
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(cls, batch: "Batch | ArrayLike | Iterable[Any]", *arrays: ArrayLike | None) -> "Batch":
        """Return a batch as it is, or make one from arrays in the order of the fields.

        The arrays may also come in one tuple; two arrays are inputs and labels, both (B, T), or as
        the fields are. A mapping has PyTorch's names, each (B, T) or (T,): input_ids, labels,
        attention_mask, position_ids. Labels are *not* shifted; without labels, input_ids are the
        labels. The attention_mask is 0 for padding, on the right. A position of 0 within a row
        begins a new example; examples do not see each other.

        Raises TypeError, with an example, for any other object; ShapeError for shapes that differ,
        and for padding before tokens.
        """
        if isinstance(batch, Batch):
            return batch.read()
        if arrays:  # the engine says what is wrong with them
            parts: Any = (batch, *arrays)
            return cls(*(None if each is None else np.asarray(each) for each in parts))
        if isinstance(batch, Mapping):
            return cls._named(batch)
        parts = batch
        if not isinstance(parts, tuple | list) or not 2 <= len(parts) <= 6:
            raise TypeError(_expected(parts))
        try:
            fields = [None if each is None else np.asarray(each) for each in parts]
        except ValueError as error:
            raise TypeError(_expected(parts)) from error
        if any(each is not None and each.dtype.kind not in "iufb" for each in fields):
            raise TypeError(_expected(parts))
        if len(fields) == 2:
            fields.insert(1, None)
        ids, labels = fields[0], fields[2]
        if ids is None or ids.ndim != 2 or labels is None or labels.shape != ids.shape:
            return cls(*fields)
        flat = (each if each is None or each.ndim != 2 else each.reshape(-1) for each in fields)
        return cls(*flat, width=ids.shape[1])

    @classmethod
    def _named(cls, batch: Mapping[str, Any]) -> "Batch":
        """Return a batch from arrays with PyTorch's names."""
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
                    "batch: attention_mask: expected padding after the tokens of a row; got some "
                    "before them: pad on the right"
                )
            following[..., :-1][mask[..., 1:] == 0] = IGNORED
        positions = arrays.get("position_ids")
        segments = None if positions is None else _segments(positions)
        if positions is not None and segments is not None:  # no label from the next example
            following[..., :-1][positions[..., 1:] == 0] = IGNORED
        return cls(
            ids.reshape(-1),
            None if positions is None else positions.reshape(-1),
            following.reshape(-1),
            segments,
            width=ids.shape[-1],
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield inputs, positions, labels; then segments, bounds, wanted unless they are None."""
        yield from (self.inputs, self.positions, self.labels)
        more = (self.segments, self.bounds, self.wanted)
        yield from (array for array in more if array is not None)

    def read(self) -> "Batch":
        """Return the batch with its arrays, which may be read or written only now."""
        return self if self.writer is None else self.writer(self)

    @cached_property
    def rows(self) -> int:
        """The number of labels with loss; for preferences, of pairs or single completions."""
        if self.bounds is not None:
            return self.examples // 2 if self.wanted is None else self.examples
        labels = np.asarray(self.labels)
        if labels.ndim == 1 and labels.dtype.kind == "f":  # one picture's, dense
            return int(labels.any())
        return int(np.count_nonzero(labels.any(axis=1) if labels.ndim == 2 else labels != IGNORED))

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.inputs)

    @property
    def examples(self) -> int:
        """The number of examples in a packed batch; for preferences, of sequences."""
        if self.bounds is not None:
            return len(self.bounds) // 2
        return int(np.count_nonzero(self.segments == np.arange(self.tokens)))
