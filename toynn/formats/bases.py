"""Open a model in either format: a GGUF file or a Hugging Face folder."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from toynn.errors import GGUFError
from toynn.formats import gguf, hf
from toynn.formats.foreign import foreign
from toynn.formats.gguf import GGUFFile
from toynn.formats.hf import HFModel
from toynn.formats.hf.config import CLASSES
from toynn.formats.hf.name_mapping import NAME_MAPPINGS

#: An open model; both formats have GGUF's keys and names.
Base = GGUFFile | HFModel


def open(path: str | os.PathLike[str], *, check: bool | None = None) -> Base:
    """Map a model's file or folder, and read its metadata.

    `check` searches the weights for NaN and infinity; None means only if the model is small. Raises
    GGUFError or DataError for a malformed model, and for one of another kind, such as an encoder.
    """
    if Path(path).is_dir():
        return hf.open(path, check=check)
    file = gguf.open(path, check=check)
    architecture = file.metadata.get("general.architecture")
    heads = [name for name in file.tensors if name.startswith("cls.") and name != CLASSES]
    mapping = NAME_MAPPINGS.get(str(architecture))
    encodes = mapping is not None and mapping.encodes
    if other := foreign(() if encodes else [architecture, *heads]):
        file.close()
        raise GGUFError(f"{file.path}: {other}")
    return file


def opened(model: Any, check: bool = True) -> AbstractContextManager[Any]:
    """Open a file or folder unless it is open. A session keeps the mapping of a closed file."""
    if isinstance(model, str | os.PathLike):
        return open(model, check=check)
    return nullcontext(model)


def context_length(path: str | os.PathLike[str]) -> int | None:
    """Return a model's context length in tokens; None if the file or folder does not say.

    The weights may be missing. Raises GGUFError or DataError as ``open`` does.
    """
    if Path(path).is_dir():
        return hf.context_length(Path(path))
    with open(path, check=False) as file:
        length = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) else None
