"""The registry of architectures: each file registers its own."""

from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.models.sequence import SequenceModel

#: Models that predict the next token, by general.architecture of GGUF files; and encoders.
ARCHITECTURES: dict[str, SequenceModel[Any]] = {}
ENCODERS: dict[str, SequenceModel[Any]] = {}


def register(model: SequenceModel[Any]) -> None:
    """Make a model known to recipes, files, adapters and the command line.

    Raises ConfigError if the name is taken.
    """
    if model.architecture in ARCHITECTURES or model.architecture in ENCODERS:
        raise ConfigError(f"register: architecture {model.architecture!r} is registered already")
    (ENCODERS if model.encodes else ARCHITECTURES)[model.architecture] = model
    NAME_MAPPINGS[model.architecture] = model.name_mapping()


def architecture(name: str) -> SequenceModel[Any]:
    """Return the model of an architecture. Raises ConfigError, which lists the known names."""
    if name in ENCODERS:
        return ENCODERS[name]
    if name not in ARCHITECTURES:
        raise ConfigError(f"architecture {name!r}: toynn has {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
