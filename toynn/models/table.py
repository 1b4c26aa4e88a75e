"""A model's weights as a table: names, shapes, initial values.

    matrix("blk.{n}.attn_q", "Q C", "model.layers.{n}.self_attn.q_proj", std=0.02, bias="qkv_bias")
    norm("output_norm", "C", "model.norm")

A row is a module, which has a weight and perhaps a bias. "{n}" is the number of a block: rows with
it stand for as many weights as there are blocks. The letters of a shape are sizes, which the model
gives for each block; so are the names of conditions, of which 0 means that there is no such weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn._kernels import random
from toynn.formats.hf.name_mapping import Order

__all__ = [
    "Row",
    "Shapes",
    "Sizes",
    "Start",
    "Weight",
    "by_width",
    "expand",
    "experts",
    "matrix",
    "norm",
    "router",
    "table",
    "taps",
]

Shapes = dict[str, tuple[int, ...]]
Sizes = Mapping[str, int]
#: The standard deviation of a new matrix: a number, or what a configuration and a shape make it.
Start = float | Callable[[Any, tuple[int, ...]], float]


@dataclass(frozen=True)
class Row:
    """A module with weights, in every block or once.

    Attributes
    ----------
    name, elsewhere
        GGUF's name (timm's, of a model of pictures), and Hugging Face's; empty: it has none there.
        "{e}" in the latter is the number of an expert, whose matrix is a weight of its own there;
        "[0/2]" at its end: it is the first half of what is one weight there.
    shape
        Sizes of the weight, the rows of a matrix first.
    kind
        "matrix": x W^T is computed, and it can have an adapter. "table": rows are looked up.
        "norm": a gain. "experts": a stack of matrices, which can have adapters, one for each.
        "router": a matrix that chooses among them, and has none. "choice": what is added to its
        scores for that, 0 in a new model. "sinks": scores of heads.
        "taps": a convolution's (C, L). "decays": numbers below 0, by which states forget.
    std
        Of the normal distribution that it starts from. In blocks, times ``init_scale``.
    bias, when, frozen
        Whether there is a bias; whether it is there at all; whether it is not trained.
    pairs
        Keys of the number of heads, if its rows have the pairs that RoPE rotates together here and
        half a head apart at Hugging Face.
    transposed
        Whether its matrix is (in, out) at Hugging Face.
    spread
        Whether it has an axis of one more before the last at Hugging Face.
    more
        By how much its numbers are more than those at Hugging Face, where a gain is 1 + w.
    bare
        Whether the names, here and there, are that of the weight, without ``.weight``.
    logarithm
        Whether the numbers are -e^x of those at Hugging Face.
    order
        Another order of its rows or columns there.
    flat
        The key of the number of its rows, if it has one axis there.
    """

    name: str
    shape: str
    elsewhere: str = ""
    kind: str = "matrix"
    std: Start = 0.0
    bias: bool | str = False
    when: bool | str = True
    frozen: bool | str = False
    pairs: tuple[str, ...] = ()
    transposed: bool = False
    spread: bool = False
    more: float = 0.0
    bare: bool = False
    logarithm: bool = False
    order: Order | None = None
    flat: str = ""


def matrix(name: str, shape: str, elsewhere: str = "", *, std: Start, **more: Any) -> Row:
    """Return a row for what is multiplied by."""
    return Row(name, shape, elsewhere, "matrix", std, **more)


def table(name: str, shape: str, elsewhere: str = "", *, std: Start, **more: Any) -> Row:
    """Return a row for what rows are looked up in."""
    return Row(name, shape, elsewhere, "table", std, **more)


def router(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the matrix that chooses experts."""
    return Row(name, shape, elsewhere, "router", by_width, **more)


def experts(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the matrices of all experts, as one weight."""
    return Row(name, shape, elsewhere, "experts", by_width, **more)


def by_width(cfg: Any, shape: tuple[int, ...]) -> float:
    """Return the standard deviation of a matrix by which sums keep their size."""
    return 1 / sqrt(shape[-1])


def taps(name: str, shape: str, elsewhere: str = "", *, std: Start, **more: Any) -> Row:
    """Return a row for what a convolution of each channel sums by: (C, 1, L) at Hugging Face."""
    return Row(name, shape, elsewhere, "taps", std, spread=True, **more)


def norm(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the gain of a norm, which starts at 1."""
    return Row(name, shape, elsewhere, "norm", **more)


@dataclass(frozen=True)
class Weight:
    """One weight of a model: a row of the table, in a block or outside."""

    name: str
    shape: tuple[int, ...]
    row: Row
    is_bias: bool
    is_frozen: bool

    def start(self, cfg: Any, scale: float, seed: int, stream: int) -> NDArray[np.float32]:
        """Return its first values: ones of a gain, zeros of a bias, else drawn from N(0, std).

        Of decays: -1 to -16, as Mamba-2 has them.
        """
        if self.row.kind == "norm" and not self.is_bias:
            return np.ones(self.shape, np.float32)
        if self.row.kind == "decays":
            return np.linspace(-1, -16, self.shape[0], dtype=np.float32).reshape(self.shape)
        values = np.zeros(self.shape, np.float32)
        if not self.is_bias and self.row.std:
            std = self.row.std if isinstance(self.row.std, float) else self.row.std(cfg, self.shape)
            random.normal(values.reshape(-1), seed, stream, std * scale)
        return values


def expand(
    rows: Iterable[Row], n_layers: int, sizes: Callable[[int | None], Sizes]
) -> Iterator[Weight]:
    """Yield the weights of a table in its order, those of a block together.

    sizes: those outside the blocks, of None, or of a block, of its number.
    """
    for in_blocks, group in groupby(rows, key=lambda row: "{n}" in row.name):
        together = tuple(group)
        for n in range(n_layers) if in_blocks else (None,):
            known = sizes(n)
            for row in together:
                yield from _weights(row, n, known)


def _weights(row: Row, n: int | None, sizes: Sizes) -> Iterator[Weight]:
    def holds(condition: bool | str) -> bool:
        return condition if isinstance(condition, bool) else bool(sizes[condition])

    if not holds(row.when):
        return
    name = row.name.replace("{n}", str(n))
    shape, frozen = tuple(sizes[letter] for letter in row.shape.split()), holds(row.frozen)
    yield Weight(name if row.bare else f"{name}.weight", shape, row, False, frozen)
    if holds(row.bias):
        rows = shape[:2] if row.kind == "experts" else shape[:1]
        yield Weight(f"{name}.bias", rows, row, True, frozen)
