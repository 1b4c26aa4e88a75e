"""Convert a Hugging Face folder to a GGUF file, as llama.cpp's converter does.

Names, shapes, types and the order of rows are GGUF's. Matrices get the requested type; norms and
biases stay float32. The tokenizer and the chat template are included. Only one tensor at a time is
in memory.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.engines.files import check_tensors, classes_of, config_of, metadata_of, tokenizer_of
from toynn.errors import ConfigError
from toynn.formats import gguf, hf, mixes, sentences
from toynn.formats.adapters import Adapter
from toynn.formats.bases import Base
from toynn.formats.fuse import Fused, fuse
from toynn.formats.gguf import Deferred, stored_as
from toynn.formats.hf import HFModel
from toynn.formats.outtypes import MIXES, OUTTYPES, check_kind
from toynn.formats.sentences import POOLINGS
from toynn.formats.tokenizer.folder import has_tokenizer
from toynn.models import HEAD, TABLE, architecture
from toynn.models.encoder import LABELS, PROBLEM
from toynn.options import RecipeOptions

Floats = NDArray[np.float32]
#: Called with the tensors written so far, their number in all, and the next one's name.
Progress = Callable[[int, int, str], None]


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    outtype: str = "f16",
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """Write a folder as a GGUF file; return the type of each tensor by its name.

    ``outtype`` is the type of the matrices: f32, f16, bf16 or q8_0. It may also be one of
    `toynn.formats.outtypes.MIXES` (q4_k_m, iq4_xs, ...). Then llama.cpp's quantizer chooses the
    types, and needs a temporary float32 file next to ``out``. ``tokenizer`` is a path that replaces
    the folder's own. The file is written whole or not at all.

    Raises ConfigError for another outtype, for a mix without llama-cpp-python, for a file instead
    of a folder, and for a model that GGUF cannot describe. Raises DataError for a folder that
    cannot be read, or whose tokenizer llama.cpp lacks. Raises GGUFError if ``out`` exists or cannot
    be written.
    """
    check_kind(outtype, "convert")
    if Path(folder).is_file():
        is_gguf = Path(folder).suffix.lower() == ".gguf"
        got = "it is a GGUF file already" if is_gguf else "got a file"
        raise ConfigError(f"convert: {os.fspath(folder)}: expected a folder; {got}")
    if not Path(folder, "config.json").exists():
        there = Path(folder, "model.gguf")
        got = "got another folder" if Path(folder).is_dir() else "no such folder exists"
        got = f"it has a GGUF file already, {there}" if there.exists() else got
        raise ConfigError(
            f"convert: {os.fspath(folder)}: expected a Hugging Face folder, with config.json; {got}"
        )
    if outtype in MIXES:
        instead = f"toynn convert {os.fspath(folder)} --outtype f32 --out whole.gguf"
        with (
            mixes.quantized(
                Path(out),
                outtype,
                lambda whole: convert(folder, whole, "f32", progress=progress, tokenizer=tokenizer),
                overwrite=overwrite,
                who="convert",
                instead=instead,
            ) as (_, gguf_path),
            gguf.open(gguf_path, check=False) as file,
        ):
            return {name: info.type.lower() for name, info in file.tensors.items()}
    gguf.check_target(Path(out), overwrite=overwrite)
    with hf.open(folder) as model:
        metadata = _metadata(model, outtype, tokenizer)
        sources = {name: name for name in model.tensors}
        if architecture(model.architecture).needs_head:
            sources.setdefault(HEAD, TABLE)

        def read(number: int, name: str) -> Floats:
            if progress is not None:
                progress(number, len(sources), name)
            return model[sources[name]]

        tensors = {}
        for number, (name, source) in enumerate(sources.items()):
            shape = model.tensors[source].shape
            values = Deferred(shape, np.dtype(np.float32), partial(read, number, name))
            tensors[name] = values, stored_as(name, shape, outtype)
        gguf.write(out, metadata, tensors, overwrite=overwrite, check=model.check_unchanged)
    return {name: type for name, (_, type) in tensors.items()}


def fuse_into(
    base: Base,
    adapter: Adapter,
    out: str | os.PathLike[str],
    *,
    outtype: str | None = None,
    overwrite: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
) -> Fused:
    """Write a model and its adapter as one GGUF file: see ``toynn.formats.fuse``.

    The base may be a folder. Then the default ``outtype`` is the most common type of its weights
    among f32, f16, bf16 and q8_0, or else q8_0. The file gets the folder's tokenizer, or the one
    whose path is given; a GGUF file keeps its own.

    Raises what ``fuse`` does, and ConfigError and DataError as ``convert`` does. Raises ConfigError
    also for a tokenizer given with a GGUF file, and for a folder with a tied head if llama.cpp
    needs a head of its own.
    """
    if tokenizer is not None and not isinstance(base, HFModel):
        raise ConfigError(f"fuse: {base.path} is a GGUF file, and keeps its own tokenizer")
    if not isinstance(base, HFModel):
        return fuse(base, adapter, out, outtype=outtype, overwrite=overwrite)
    if architecture(base.architecture).needs_head and HEAD not in base:
        raise ConfigError(
            f"fuse: {base.path} has a tied head, but llama.cpp needs {base.architecture} "
            "with a head of its own: `toynn convert` writes it; fuse into that file"
        )
    chosen = _most(base) if outtype is None else outtype
    metadata = _metadata(base, chosen if chosen in OUTTYPES else "f32", tokenizer)
    fused = fuse(base, adapter, out, outtype=chosen, overwrite=overwrite, metadata=metadata)
    others = {info.type.lower() for info in base.tensors.values()} - OUTTYPES.keys()
    fused.chosen = chosen if outtype is None and others else None
    return fused


def unlike(path: str | os.PathLike[str]) -> list[str]:
    """Return what llama.cpp computes differently for a GGUF file, one sentence each.

    Raises GGUFError for a file that cannot be read.
    """
    with gguf.open(path, check=False) as file:
        cfg, _ = config_of(file, (file.architecture,), "convert")
        differences = architecture(file.architecture).unlike(cfg)
        if classes_of(file):
            differences += ["has such a head for qwen3 alone, and gives its probabilities"]
        return [f"llama.cpp {what}" for what in differences]


def _most(folder: HFModel) -> str:
    """Return the type of most elements among the types that can be written; else q8_0."""
    counts: Counter[str] = Counter()
    for info in folder.tensors.values():
        counts[info.type.lower()] += prod(info.shape)
    return next((type for type, _ in counts.most_common() if type in OUTTYPES), "q8_0")


def _metadata(
    model: HFModel, outtype: str, tokenizer: str | os.PathLike[str] | None
) -> dict[str, Any]:
    """Return the metadata of a file: the model's, and that of ``tokenizer`` or its own."""
    described = architecture(model.architecture).classifying(classes_of(model))
    cfg, options = config_of(model, (model.architecture,), "convert")
    check_tensors(model, described, cfg, RecipeOptions(**options))
    more: dict[str, Any] = {"general.name": model.path.resolve().name}
    if tokenizer is not None or has_tokenizer(model.path):
        more |= tokenizer_of(tokenizer or model.path, cfg.vocab)
    metadata = metadata_of(described, cfg, outtype, more)
    if described.encodes or described.classes:
        pooling = "rank" if described.classes or cfg.head else sentences.read(model.path).pooling
        name, stored = metadata["general.architecture"], model.metadata
        metadata[f"{name}.pooling_type"] = POOLINGS.index(pooling)
        of_head = (key for key in (LABELS, PROBLEM) if f"{model.architecture}.{key}" in stored)
        metadata |= {f"{name}.{key}": stored[f"{model.architecture}.{key}"] for key in of_head}
    return metadata
