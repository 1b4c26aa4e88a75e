"""Writing a model in Hugging Face's format."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats import safetensors
from toynn.formats._hf_names import CONFIG, FAMILIES, WEIGHTS, heads_of, pairs_apart

__all__ = ["write"]

Floats = NDArray[np.float32]


def write(
    path: str | os.PathLike[str],
    architecture: str,
    hyper: Mapping[str, Any],
    tensors: Mapping[str, Floats],
) -> None:
    """Write a new folder: it is complete, or absent.

    hyper: GGUF's keys without the architecture; tensors: by GGUF name, in GGUF's order.
    """
    path, family = Path(path), FAMILIES[architecture]
    if os.path.lexists(path):
        raise DataError(f"{path}: already exists; name a new folder")
    known = {key: spelled for key, spelled in family.keys.items() if key in hyper}
    config = {"model_type": architecture, **family.shown, "torch_dtype": "float32"}
    config |= {"bos_token_id": None, "eos_token_id": None}  # there is no tokenizer beside it
    config |= {spelled: hyper[key] for key, spelled in known.items()}
    config["tie_word_embeddings"] = "output.weight" not in tensors
    arrays = {}
    metadata = {f"{architecture}.{key}": value for key, value in hyper.items()}
    for name, values in tensors.items():
        transposed = family.transposed and name.startswith("blk.") and values.ndim == 2
        heads = heads_of(architecture, metadata, name)
        values = values.T if transposed else pairs_apart(values, heads) if heads else values
        arrays[family.name(name)] = np.ascontiguousarray(values)
    if architecture in ("llama", "qwen3") and "blk.0.attn_q.bias" in tensors:
        config["attention_bias"] = True  # of the output too
        for n in range(hyper["block_count"]):
            bias = np.zeros(hyper["embedding_length"], np.float32)
            arrays[family.name(f"blk.{n}.attn_output.bias")] = bias
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        with (temporary / WEIGHTS).open("wb") as file:
            file.writelines(safetensors.parts(arrays, {"format": "pt"}))
        for part in (CONFIG, WEIGHTS):
            with (temporary / part).open("rb") as file:
                os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        raise DataError(f"{path}: cannot write: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
