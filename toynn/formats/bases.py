"""Models in files of either format: a GGUF file, or a folder in Hugging Face's."""

import os
from pathlib import Path

from toynn.formats import gguf, hf
from toynn.formats.gguf import GGUFFile
from toynn.formats.hf import HFModel

__all__ = ["Base", "context_length", "open"]

#: An open one: by GGUF's keys and names, whichever it is.
Base = GGUFFile | HFModel


def open(path: str | os.PathLike[str], *, check: bool | None = None) -> Base:
    """Map a model's file, or those of a folder, and read what they say of it.

    Raises GGUFError or DataError for whatever is wrong with it. `check` looks through the weights
    for NaN and infinity; None: if they are few.
    """
    folder = Path(path).is_dir()
    return hf.open(path, check=check) if folder else gguf.open(path, check=check)


def context_length(path: str | os.PathLike[str]) -> int | None:
    """Return how many tokens a model sees at most; None where its file or folder does not say.

    The weights need not be there. Raises GGUFError or DataError as ``open`` does.
    """
    if Path(path).is_dir():
        return hf.context_length(Path(path))
    with gguf.open(path, check=False) as file:
        found = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return found if isinstance(found, int) else None
