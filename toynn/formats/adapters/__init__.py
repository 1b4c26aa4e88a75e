"""LoRA adapters as GGUF files, which llama.cpp loads with --lora, and as PEFT folders.

    adapter = adapters.load("adapter.gguf")
    adapters.write_gguf("adapter.gguf", adapter)
    with gguf.open("base.gguf", check=False) as base:
        adapter = adapters.load("folder", base)
        adapters.write_peft("folder", adapter, base)

In memory, names and the order of rows are GGUF's. A PEFT folder has Hugging Face's, so reading one
needs the base model. With a base model, an adapter is checked against it: see `check`.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from toynn.errors import AdapterError
from toynn.formats.adapters.adapter import (
    LORA_A,
    LORA_B,
    LORA_M,
    Adapter,
    Base,
    Floats,
    gguf_architecture,
    is_embedding,
    is_stack,
    is_tied,
    matrix_of,
)
from toynn.formats.adapters.checks import check
from toynn.formats.adapters.combine import combine
from toynn.formats.adapters.forms import no_gguf, no_peft
from toynn.formats.adapters.gguf_file import read_gguf, write_gguf
from toynn.formats.adapters.identity import base_metadata
from toynn.formats.adapters.peft import CONFIG, WEIGHTS, read_peft
from toynn.formats.adapters.peft_writer import write_peft

__all__ = [
    "LORA_A",
    "LORA_B",
    "LORA_M",
    "Adapter",
    "Base",
    "base_metadata",
    "check",
    "combine",
    "gguf_architecture",
    "is_embedding",
    "is_stack",
    "is_tied",
    "load",
    "matrix_of",
    "merge",
    "no_gguf",
    "no_peft",
    "refuse_others",
    "write_gguf",
    "write_peft",
]


CHUNK = 1 << 18  # elements of a delta that are computed at once


def load(
    path: str | os.PathLike[str], base: Base | None = None, *, strict: bool = False
) -> Adapter:
    """Read an adapter from a GGUF file or a PEFT folder; with ``base``, check that it fits.

    An adapter that fits but was trained on another model gives a warning, or with ``strict`` an
    AdapterError. A PEFT folder needs ``base``, an open GGUFFile or HFModel. Its alpha_pattern is
    folded into B, so that one alpha is left. Parts that toynn does not compute (modules_to_save,
    biases) are refused by name.

    Raises AdapterError for a file that is not an adapter, or does not fit the base. Raises
    GGUFError and DataError for damaged files.
    """
    path = Path(path)
    if path.name in (CONFIG, WEIGHTS):
        path = path.parent
    refuse_others(path)
    if (path / "adapter.gguf").is_file() and (base is None or not (path / CONFIG).exists()):
        path = path / "adapter.gguf"  # a run's folder; an unfinished run has only this file
    if not path.is_dir():
        adapter = read_gguf(path)
        if base is not None:
            check(adapter, base, strict=strict)
            if adapter.architecture != (named := gguf_architecture(base)):
                adapter = replace(adapter, architecture=named)
        return adapter
    if base is None:
        raise AdapterError(
            f"{path}: a PEFT folder has neither the architecture nor the order of rows; name the "
            f"base model too (base=|--model)"
        )
    return read_peft(path, base, strict=strict)


def refuse_others(path: Path) -> None:
    """Raise AdapterError for a folder without an adapter, such as a folder of a whole model."""
    if not path.is_dir() or any((path / name).exists() for name in ("adapter.gguf", CONFIG)):
        return
    if any((path / name).exists() for name in ("model.gguf", "model.safetensors", "config.json")):
        model = path / "model.gguf"
        raise AdapterError(
            f"{path}: expected an adapter; got a whole model: use "
            f"{model if model.exists() else path} as it is, as the model"
        )
    raise AdapterError(
        f"{path}: expected an adapter: adapter.gguf, or {CONFIG} with {WEIGHTS}; got a folder "
        "without these files"
    )


def merge(w: Floats, adapter: Adapter, weight: str) -> float:
    """Add s B A to a weight's values w (out, in); return the sum of squares of the change.

    For token_embd.weight it is s A B^T. With magnitudes (DoRA), rows are then scaled to have them
    as norms. No second matrix of w's size is allocated.
    """
    a, b = adapter.pairs[weight]
    if w.ndim == 3:  # a stack of experts
        scale = np.float32(adapter.scale(weight))
        return sum(_add(w[e], scale * b[e], a[e]) for e in range(len(w)))
    left, right = (a, b.T) if is_embedding(weight) else (b, a)
    magnitude = adapter.magnitudes.get(weight)
    return _add(w, np.float32(adapter.scale(weight)) * left, right, magnitude)


def _add(w: Floats, left: Floats, right: Floats, magnitude: Floats | None = None) -> float:
    """Add left @ right to w, then set the norms of its rows; return the sum of squares added."""
    rows = max(1, CHUNK // w.shape[1])
    squares = 0.0
    for begin in range(0, len(w), rows):
        part = w[begin : begin + rows]
        delta = left[begin : begin + rows] @ right
        if magnitude is not None:
            merged = part + delta
            norms = np.linalg.norm(merged.astype(np.float64), axis=1)
            factors = magnitude[begin : begin + rows] / np.where(norms > 0, norms, 1)
            delta = (merged * factors[:, None]).astype(np.float32) - part
        part += delta
        squares += float(np.vdot(delta, delta))
    return squares
