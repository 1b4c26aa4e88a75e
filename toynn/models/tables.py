"""A model's weights as a table: names, shapes, initial values.

    matrix("blk.{n}.attn_q", "Q C", "model.layers.{n}.self_attn.q_proj", bias="qkv_bias")
    norm("output_norm", "C", "model.norm")

A row is a module: a weight, and perhaps a bias. "{n}" is the index of a block; such a row stands
for one weight in each block. The letters of a shape are sizes; the model gives their values for
each block. It gives the values of conditions (``when``, ``bias``) too; 0 means no such weight.
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

Floats = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]
Sizes = Mapping[str, int]
#: The standard deviation of a new matrix: a number, or a function of configuration and shape.
Start = float | Callable[[Any, tuple[int, ...]], float]


@dataclass(frozen=True)
class Row:
    """A module: one in every block, or one in the model.

    Attributes
    ----------
    name, elsewhere
        GGUF's name (timm's for models of pictures), and Hugging Face's; empty: it has none there.
        "{e}" in the latter is the index of an expert: each expert is a separate weight there.
        "[0/2]" at its end means the first half of one weight there.
    shape
        Sizes of the weight, the rows of a matrix first.
    kind
        "matrix": x W^T is computed; it can have an adapter. "table": rows are looked up.
        "norm": a gain. "experts": a stack of matrices, each of which can have an adapter.
        "router": a matrix that chooses experts; it can have no adapter. "choice": b, which is added
        to the router's scores for the choice, 0 in a new model. "sinks": one score for each head.
        "taps": a convolution's (C, L). "decays": negative numbers, the decay rates of states.
    std
        Standard deviation of the initial values; in blocks, times ``init_scale``.
    bias, when, frozen
        Whether the module has a bias; whether it exists; whether it is frozen.
    pairs
        Set if RoPE's pairs are adjacent rows in GGUF, and half a head apart at Hugging Face: the
        keys of the number of heads, of q and of k.
    transposed
        Whether the matrix is (in, out) at Hugging Face.
    spread
        Whether the shape at Hugging Face has an extra axis of size 1 before the last.
    more
        What is added to Hugging Face's numbers: 1 for a gain that is stored as w = gain - 1.
    bare
        Whether both names are the weight's own, without ``.weight``.
    logarithm
        Whether this weight is -e^x of Hugging Face's x.
    order
        The order of rows or columns at Hugging Face, if it differs.
    flat
        The key of the number of rows, if the weight has one axis at Hugging Face.
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


def by_width(cfg: Any, shape: tuple[int, ...]) -> float:
    """Return 1 / sqrt(inputs), the standard deviation with which a product keeps x's scale."""
    return 1 / sqrt(shape[-1])


def matrix(
    name: str, shape: str, elsewhere: str = "", *, std: Start = by_width, **more: Any
) -> Row:
    """Return a row for the matrix of a product."""
    return Row(name, shape, elsewhere, "matrix", std, **more)


def table(name: str, shape: str, elsewhere: str = "", *, std: Start, **more: Any) -> Row:
    """Return a row for a table in which rows are looked up."""
    return Row(name, shape, elsewhere, "table", std, **more)


def router(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the matrix that chooses experts."""
    return Row(name, shape, elsewhere, "router", by_width, **more)


def experts(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the matrices of all experts, as one weight."""
    return Row(name, shape, elsewhere, "experts", by_width, **more)


def taps(name: str, shape: str, elsewhere: str = "", **more: Any) -> Row:
    """Return a row for the taps of a convolution by channel, (C, 1, L) at Hugging Face."""
    return Row(name, shape, elsewhere, "taps", by_width, spread=True, **more)


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
        """Return the initial values: 1 for a gain, 0 for a bias, else drawn from N(0, std).

        Decays start from -1 to -16, as in Mamba-2.
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
    """Yield the weights of a table in its order, block by block.

    ``sizes`` maps a block's index, or None outside the blocks, to sizes and conditions.
    """
    for in_blocks, group in groupby(rows, key=lambda row: "{n}" in row.name):
        together = tuple(group)
        for n in range(n_layers) if in_blocks else (None,):
            sizes_of_block = sizes(n)
            for row in together:
                yield from _weights(row, n, sizes_of_block)


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
