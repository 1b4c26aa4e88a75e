"""The registry of architectures: each file registers its own."""

from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.models.sequence import SequenceModel

__all__ = ["ARCHITECTURES", "architecture", "register"]

#: By general.architecture of GGUF files.
ARCHITECTURES: dict[str, SequenceModel[Any]] = {}


def register(model: SequenceModel[Any]) -> None:
    """Let a model be known: to recipes, files, adapters and the command line.

    Raises ConfigError if there is another of that name.
    """
    if model.architecture in ARCHITECTURES:
        raise ConfigError(f"register: there is an architecture {model.architecture!r} already")
    ARCHITECTURES[model.architecture] = model
    NAME_MAPPINGS[model.architecture] = model.name_mapping()


def architecture(name: str) -> SequenceModel[Any]:
    """Return the model of an architecture. Raises ConfigError, which lists those that there are."""
    if name not in ARCHITECTURES:
        raise ConfigError(f"architecture {name!r}: toynn has {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
