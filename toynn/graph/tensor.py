"""Tensors: handles on what the nodes of a tape read and write; they have no memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from typing import Any

from toynn.backends.protocol import Place
from toynn.errors import ConfigError, ShapeError
from toynn.graph.operators import Operators
from toynn.numerics import dtypes


class Role(Enum):
    """The purpose of a tensor: it decides who owns its memory and for how long."""

    PARAMETER = "parameter"  # trained; owned by the session
    CONSTANT = "constant"  # frozen; owned by the session
    MOMENT = "moment"  # of AdamW; owned by the session
    GRADIENT = "gradient"  # of a parameter; owned by the session
    STATE = "state"  # scalars of the optimizer; owned by the session
    PERSISTENT = "persistent"  # kept from run to run; owned by the session
    INPUT = "input"  # uploaded; stored as long as its tape
    ACTIVATION = "activation"  # live from its producer to its last reader


@dataclass(frozen=True)
class ValidRows:
    """The number of valid rows of a tensor in a run: ``count`` minus ``first``.

    The shape is the maximum. The contents of the other rows are undefined.
    """

    count: "Tensor"  # i32 (), known before a kernel reads the rows
    first: int = 0


@dataclass(eq=False, slots=True)
class Tensor(Operators):
    """A handle: a name, a shape and a role. The planner gives it a place in memory.

    ``dtype`` is "f32", "i32" or, for frozen weights, one of ``dtypes.QUANTIZED``; what an
    activation is narrowed to has "bf16".
    A tensor with a ``base`` is the part of that tensor which starts ``offset`` elements in.
    ``valid`` says how many of its rows a run computes; None: all. ``owner`` returns its session.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    dtype: str = "f32"
    base: "Tensor | None" = None
    offset: int = 0
    valid: ValidRows | None = None
    owner: Callable[[], Any] | None = None
    size: int = field(init=False)  # number of elements
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = prod(self.shape)
        self.nbytes = dtypes.nbytes(self.dtype, self.size)

    @property
    def root(self) -> "Tensor":
        """The tensor that owns the memory: itself, or its base."""
        return self.base or self

    @property
    def valid_rows(self) -> ValidRows | None:
        """The valid rows of this tensor, or of this part of one."""
        valid = self.root.valid
        if valid is None or self.base is None or self.shape == self.base.shape:
            return valid
        return ValidRows(valid.count, valid.first + self.offset // prod(self.shape[1:]))

    @property
    def whole(self) -> "Tensor":
        """The tensor that owns the memory, if this is all of it in another shape; else itself."""
        base = self.base
        return self if base is None or self.offset or self.size != base.size else base

    def view(self, shape: tuple[int, ...]) -> "Tensor":
        """Return a handle on the same elements in another shape of as many elements.

        Raises ConfigError if only some rows are valid: no count says which elements that are.
        """
        if shape == self.shape:
            return self
        if shape == self.whole.shape:
            return self.whole
        if self.root.valid is not None:
            count = self.root.valid.count.name
            raise ConfigError(f"{self.name}: another shape needs all rows; {count} says how many")
        name = f"{self.whole.name}:{'x'.join(map(str, shape))}"
        return replace(self, name=name, shape=shape, base=self.root, valid=None)

    def rows(self, first: int, last: int) -> "Tensor":
        """Return a handle on rows ``first`` to ``last - 1``; itself if these are all rows.

        Raises ShapeError if this is a part already.
        """
        if (first, last) == (0, self.shape[0]):
            return self
        if self.base is not None:
            raise ShapeError(f"{self.name} is a part already; take a part of {self.base.name}")
        shape = (last - first, *self.shape[1:])
        offset = first * prod(self.shape[1:])
        return replace(
            self,
            name=f"{self.name}[{first}:{last}]",
            shape=shape,
            base=self,
            offset=offset,
            valid=None,
        )

    def at(self, offset: int) -> "Tensor":
        """Return a handle on the elements from ``offset`` on, with the same shape and row stride.

        Only for ops that are told how many columns to read, such as attention.

        Raises ShapeError where this is a part already.
        """
        if self.base is not None:
            raise ShapeError(f"{self.name} is a part already; take a part of {self.base.name}")
        return replace(self, name=f"{self.name}+{offset}", base=self, offset=offset, valid=None)

    def __repr__(self) -> str:
        return f"{self.name} {self.shape}"


def place_of(tensor: Tensor, places: Mapping[Tensor, Place]) -> Place:
    """Return where a tensor, or a part of one, begins, from the places of roots."""
    if tensor.base is None:
        return places[tensor]
    start = places[tensor.base]
    return Place(start.buffer, start.offset + dtypes.nbytes(tensor.dtype, tensor.offset))
