"""Writing a model in Hugging Face's format."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats import safetensors
from toynn.formats.folders import new_folder
from toynn.formats.hf.config import CONFIG, WEIGHTS
from toynn.formats.hf.pieces import cut, is_cut, joined
from toynn.formats.hf.spelling import SPELLINGS, module_of, pairs_apart

__all__ = ["write"]

Floats = NDArray[np.float32]


def write(
    path: str | os.PathLike[str],
    architecture: str,
    hyper: Mapping[str, Any],
    tensors: Mapping[str, Floats],
    said: Mapping[str, Floats] = MappingProxyType({}),
) -> None:
    """Write a new folder: it is complete, or absent.

    hyper: GGUF's keys without the architecture; tensors: by GGUF name, in GGUF's order; said: those
    that config.json says.

    Raises DataError if there is something in its place, or a weight cannot be said there.
    """
    path, spelling = Path(path), SPELLINGS[architecture]
    if os.path.lexists(path):
        raise DataError(f"{path}: already exists; name a new folder")
    known = {key: spelled for key, spelled in spelling.keys.items() if key in hyper}
    config = {
        "model_type": spelling.model_types[0],
        **spelling.shown,
        "torch_dtype": "float32",
    }
    config |= {"bos_token_id": None, "eos_token_id": None}  # there is no tokenizer beside it
    config |= {spelled: hyper[key] for key, spelled in known.items()}
    config["tie_word_embeddings"] = "output.weight" not in tensors
    more, added = spelling.beside(hyper, {**tensors, **said})
    config |= more
    arrays: dict[str, Floats] = {}
    parts: dict[tuple[str, int], Floats] = {}
    how: dict[str, str] = {}  # the parts of a weight are put together
    metadata = {f"{architecture}.{key}": value for key, value in hyper.items()}
    for name, values in {**tensors, **added}.items():
        heads = spelling.heads(metadata, name)
        spelled = spelling.name(name)
        if is_cut(spelled):
            pieces = cut(spelled, values)
            parts |= pieces
            how |= dict.fromkeys((name for name, _ in pieces), spelled)
            continue
        if less := spelling.more.get(module_of(name), 0.0):
            values = values - np.float32(less)
        if module_of(name) in spelling.logarithms:
            if not (values < 0).all():
                raise DataError(f"{path}: {name}: has numbers that are not below 0: no logarithm")
            values = np.log(-values)
        if order := spelling.order(metadata, name, values.shape):
            values = np.take(values, np.argsort(order[1]), order[0])
        if spelling.is_transposed(name, values.ndim):
            values = values.T
        elif heads:
            values = pairs_apart(values, heads)
        if module_of(name) in spelling.spread:
            values = values[:, None]
        arrays[spelling.bare_name(spelled)] = np.ascontiguousarray(values)
    for spelled, whole in how.items():
        found = [values for (name, _), values in sorted(parts.items()) if name == spelled]
        arrays[spelling.bare_name(spelled)] = joined(whole, found)
    with new_folder(path, DataError) as folder:
        folder.write(CONFIG, (json.dumps(config, indent=2) + "\n").encode())
        folder.write(WEIGHTS, safetensors.parts(arrays, {"format": "pt"}))
