"""Stacks: matrices that llama.cpp's files have as one tensor, and toynn one by one.

altup_proj.0.weight (C, C), altup_proj.1.weight, ...        altup_proj.weight (A, C, C)
"""

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats.gguf.deferred import Array, Deferred, Tensors
from toynn.formats.gguf.latents import floats_of
from toynn.formats.gguf.tensors import TensorInfo

_STACKS = ("altup_proj", "altup_unembd_proj")


def one_by_one(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[str, TensorInfo]]:
    """Return the matrices of a file's stacks, each with the name of its stack, by their names."""
    matrices = {}
    for stack in _STACKS:
        info = tensors.get(f"{stack}.weight")
        if info is None or len(info.shape) != 3:
            continue
        nbytes = info.nbytes // max(info.shape[0], 1)
        for i in range(info.shape[0]):
            name = f"{stack}.{i}.weight"
            place = info.offset + i * nbytes
            matrices[name] = info.name, TensorInfo(name, info.type, info.shape[1:], place, nbytes)
    return matrices


def stacked(tensors: Tensors) -> Tensors:
    """Return a file's tensors, with each stack's matrices joined; as float32 if types differ."""
    joined = dict(tensors)
    for stack in _STACKS:
        names = []
        for i in count():
            if (name := f"{stack}.{i}.weight") not in joined:
                break
            names.append(name)
        if not names:
            continue
        pairs = [joined.pop(name) for name in names]
        types = {type for _, type in pairs}
        dtypes = {array.dtype for array, _ in pairs}
        mixed = len(types) > 1 or len(dtypes) > 1
        parts = [partial(floats_of if mixed else _made, *pair) for pair in pairs]
        first = pairs[0][0]
        shape = floats_of(*pairs[0]).shape if mixed else first.shape
        dtype = np.dtype(np.float32) if mixed else first.dtype
        whole = Deferred((len(parts), *shape), dtype, partial(_stack, parts))
        joined[f"{stack}.weight"] = whole, "f32" if mixed else pairs[0][1]
    return joined


def _made(array: Array, type: str) -> NDArray[Any]:
    return array.make() if isinstance(array, Deferred) else array


def _stack(parts: list[partial[NDArray[Any]]]) -> NDArray[Any]:
    return np.stack([part() for part in parts])
