"""Read and write adapters as GGUF files, which llama.cpp loads with --lora."""

import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toynn.errors import AdapterError
from toynn.formats import gguf
from toynn.formats.adapters.adapter import (
    BASE_NAME,
    LORA_A,
    LORA_B,
    Adapter,
    Base,
    Floats,
    gguf_architecture,
    is_stack,
)
from toynn.formats.adapters.forms import no_gguf
from toynn.formats.gguf import GGUFFile

ALPHA = "adapter.lora.alpha"
KINDS = {"general.type": "adapter", "adapter.type": "lora"}
#: An adapter that acts only after these tokens (aLoRA): toynn does not compute that.
INVOCATION = "adapter.alora.invocation_tokens"
#: Keys that describe the file, not the adapter.
OWN_KEYS = (
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    ALPHA,
    *KINDS,
)


def read_gguf(path: Path) -> Adapter:
    """Read an adapter. Raises AdapterError for one that llama.cpp would refuse or misread."""
    with gguf.open(path, check=True) as file:
        for key, expected in KINDS.items():
            got = file.metadata.get(key)
            if got != expected:
                hint = "; this is a model, not an adapter" if "output_norm.weight" in file else ""
                stored = "nothing" if got is None else repr(got)[:80]
                raise AdapterError(f"{path}: {key}: expected {expected!r}; got {stored}{hint}")
        if file.types.get(ALPHA) != "FLOAT32":
            got = file.types.get(ALPHA, "nothing")
            raise AdapterError(f"{path}: {ALPHA}: expected a FLOAT32; got {got}")
        if INVOCATION in file.metadata:
            raise AdapterError(
                f"{path}: {INVOCATION}: an adapter that acts only after these tokens (aLoRA) is "
                f"not supported"
            )
        metadata = _described(gguf.typed_metadata(file.metadata, file.types))
        alpha = file.require(ALPHA, float)
        return Adapter(file.architecture, alpha, _tensors(file), metadata=metadata, path=path)


def _tensors(file: GGUFFile) -> dict[str, Floats]:
    tensors, norms = {}, []
    for name in file:
        if name.endswith("_norm.weight"):
            norms.append(name)
            continue
        # Copies: the file will be closed. ggml drops trailing dimensions of 1, as in A of rank 1.
        values = np.array(file[name], np.float32)
        tensors[name] = values[None] if values.ndim == 1 and name.endswith(LORA_A) else values
        if values.ndim == 2 and is_stack(name):  # a single expert
            tensors[name] = values[None]
    if norms:
        warnings.warn(
            f"{file.path}: {', '.join(norms[:3])}: weights of norms are ignored, as in llama.cpp",
            stacklevel=4,
        )
    return tensors


def write_gguf(
    path: str | os.PathLike[str],
    adapter: Adapter,
    base: Base | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write an adapter for llama.cpp's --lora. Raises GGUFError, as `gguf.write` does.

    Raises AdapterError for an adapter that llama.cpp does not support: see ``no_gguf``, which also
    uses ``base``, its model. The file has one alpha, with s = alpha / r, so rsLoRA's alpha becomes
    alpha sqrt(r). If ranks differ too, r is the most common rank, and B of the other pairs is
    scaled to keep their s.
    """
    if why := no_gguf(adapter.tensors, base):
        raise AdapterError(f"{os.fspath(path)}: {why}")
    tensors = dict(adapter.tensors)
    alpha = adapter.alpha
    if adapter.use_rslora:
        alpha *= math.sqrt(adapter.rank)
        for weight in adapter.pairs:
            if adapter.alpha and (rank := adapter.rank_of(weight)) != adapter.rank:
                tensors[weight + LORA_B] = tensors[weight + LORA_B] * np.float32(
                    adapter.scale(weight) * rank / alpha
                )
    architecture = adapter.architecture if base is None else gguf_architecture(base)
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        **KINDS,
        ALPHA: (alpha, "FLOAT32"),
        **_described(adapter.metadata),
    }
    ordered = sorted(tensors, key=_natural)
    gguf.write(
        path, metadata, {name: (tensors[name], "f32") for name in ordered}, overwrite=overwrite
    )


def _described(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata to write, with the number of base models if one is named."""
    count = {"general.base_model.count": 1} if BASE_NAME in metadata else {}
    return {k: v for k, v in sorted((count | dict(metadata)).items()) if k not in OWN_KEYS}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which blk.2 comes before blk.10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
