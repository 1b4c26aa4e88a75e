"""Write a model in Hugging Face's format."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from toynn.errors import DataError
from toynn.formats import safetensors
from toynn.formats.files import Content
from toynn.formats.folders import new_folder
from toynn.formats.gguf.tensors import HEAD
from toynn.formats.hf.config import CLASSES, CLASSIFIES, CONFIG, WEIGHTS, keys_of_classes
from toynn.formats.hf.name_mapping import NAME_MAPPINGS, Floats, module_of, pairs_apart
from toynn.formats.hf.pieces import cut, is_cut, joined


def write(path: str | os.PathLike[str], *model: Any, **more: Any) -> None:
    """Write a new folder, complete or not at all, with a model as ``contents`` takes it.

    Raises DataError if the path exists, or for a weight that the format cannot hold.
    """
    if os.path.lexists(path):
        raise DataError(f"{os.fspath(path)}: already exists; name a new folder")
    files = contents(path, *model, **more)
    with new_folder(Path(path), DataError) as folder:
        for name, content in files.items():
            folder.write(name, content)


def contents(
    path: str | os.PathLike[str],
    architecture: str,
    hyper: Mapping[str, Any],
    tensors: Mapping[str, Floats],
    said: Mapping[str, Floats] = MappingProxyType({}),
    *,
    files: Mapping[str, bytes] = MappingProxyType({}),
    named: Mapping[str, int | None] = MappingProxyType({}),
) -> dict[str, Content]:
    """Return the files of a model's folder by name, the weights last; nothing is written.

    Parameters
    ----------
    path
        The folder's name in errors.
    hyper
        Hyper-parameters by GGUF's keys without the architecture.
    tensors
        Weights by GGUF name, in GGUF's order.
    said
        Tensors that config.json describes instead.
    files
        The tokenizer's files, by name.
    named
        The ids of the tokenizer's BOS and EOS, by config.json's keys.

    Raises DataError for a weight that the format cannot hold.
    """
    path, mapping = Path(path), NAME_MAPPINGS[architecture]
    hf_keys = {key: hf_key for key, hf_key in mapping.keys.items() if key in hyper}
    config: dict[str, Any] = {
        "model_type": mapping.model_types[0],
        **mapping.shown,
        "torch_dtype": "float32",
    }
    config |= {"bos_token_id": None, "eos_token_id": None, **named}
    config |= {hf_key: hyper[key] for key, hf_key in hf_keys.items()}
    config["tie_word_embeddings"] = HEAD not in tensors
    config |= mapping.rules.folder(hyper, {**tensors, **said})
    unread = mapping.rules.unread
    added = {n: said[n] for n in said if mapping.has(n) and not unread(hyper, n)}
    added |= mapping.rules.padded(tensors)
    for key, (usual, modules) in mapping.biases.items():
        biases = mapping.biases_of(tensors, modules)
        if has := any(name in tensors for name in biases):
            rows = {name: tensors[f"{name[:-4]}weight"].shape[0] for name in biases}
            zeros = {name: np.zeros(count, np.float32) for name, count in rows.items()}
            added = {name: values for name, values in zeros.items() if name not in tensors} | added
        if has or usual:
            config[key] = has
    arrays: dict[str, Floats] = {}
    parts: dict[tuple[str, int], Floats] = {}
    how: dict[str, str] = {}  # how the parts of a weight are joined
    metadata = {f"{architecture}.{key}": value for key, value in hyper.items()}
    for name, values in {**tensors, **added}.items():
        heads = mapping.heads(metadata, name)
        hf_name = mapping.name(name)
        if is_cut(hf_name) and module_of(name) in mapping.orders:
            total = sum(len(tensors[part]) for part in mapping.parts_of(name))
            empty = np.empty((total, *values.shape[1:]), np.float32)
            joint = arrays.setdefault(f"{mapping.module(name)}.weight", empty)
            joint[mapping.rows(metadata, name, total)] = values
            continue
        if is_cut(hf_name):
            pieces = cut(hf_name, values)
            parts |= pieces
            how |= dict.fromkeys((name for name, _ in pieces), hf_name)
            continue
        if less := mapping.more.get(module_of(name), 0.0):
            values = values - np.float32(less)
        if module_of(name) in mapping.logarithms:
            if not (values < 0).all():
                raise DataError(
                    f"{path}: {name}: expected numbers below 0, to store logarithms; got others"
                )
            values = np.log(-values)
        if order := mapping.order(metadata, name, values.shape):
            values = np.take(values, np.argsort(order[1]), order[0])
        if mapping.is_transposed(name, values.ndim):
            values = values.T
        elif heads:
            values = pairs_apart(values, heads)
        if mapping.is_flat(name):
            values = values.reshape(-1)
        if mapping.is_spread(name):
            values = np.expand_dims(values, -2)
        arrays[mapping.bare_name(hf_name)] = np.ascontiguousarray(values)
    for hf_name, whole in how.items():
        inside = [values for (name, _), values in sorted(parts.items()) if name == hf_name]
        arrays[mapping.bare_name(hf_name)] = joined(whole, inside)
    if CLASSES in tensors and not mapping.encodes:
        config |= keys_of_classes(hyper, len(tensors[CLASSES]))
        title = re.sub(r"For\w+$|LMHeadModel$", CLASSIFIES, config["architectures"][0])
        config |= {"architectures": [title], "pad_token_id": config["eos_token_id"]}
    if mapping.encodes:
        head = str(hyper.get("head", ""))
        arrays = {mapping.headed(name, head): values for name, values in arrays.items()}
    about = (json.dumps(config, indent=2) + "\n").encode()
    return {CONFIG: about, **files, WEIGHTS: safetensors.parts(arrays, {"format": "pt"})}
