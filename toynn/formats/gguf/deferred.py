"""Arrays made only when they are written, and the type of each tensor."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats.gguf.tensors import BLOCKS


@dataclass(frozen=True)
class Deferred:
    """An array that is made when it is written, so that only one is in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[], NDArray[Any]]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


Array = NDArray[Any] | Deferred
Tensors = Mapping[str, tuple[Array, str]]


def stored_as(name: str, shape: tuple[int, ...], outtype: str) -> str:
    """Return the type of one tensor of a model: ``outtype``, or f32 where it does not fit.

    Norms, biases, routers, matrices of one row, convolutions and position embeddings stay float32,
    as in llama.cpp's converter. In q8_0 so do matrices whose rows are not whole blocks.
    """
    exact = ("position_embd.weight", ".ffn_gate_inp.weight", ".bias")
    states = (".conv.weight", ".ssm_conv1d.weight", ".ssm_a", ".ssm_d", ".ssm_norm.weight")
    if len(shape) < 2 or shape[0] == 1 or name.endswith(exact + states):
        return "f32"
    return "f32" if shape[-1] % BLOCKS[outtype.upper()][0] else outtype
