"""The registry of architectures: a file registers its own once one of their names is asked for."""

from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.name_mapping import NAME_MAPPINGS, Registry
from toynn.models import architectures
from toynn.models.sequence import SequenceModel

#: Models that predict the next token, by general.architecture of GGUF files; and encoders.
ARCHITECTURES: Registry[SequenceModel[Any]] = Registry()
ENCODERS: Registry[SequenceModel[Any]] = Registry()

for _registry, _files in (
    (ARCHITECTURES, architectures.DECODERS),
    (ENCODERS, architectures.ENCODERS),
):
    _registry.modules |= {
        n: f"toynn.models.{file}" for file, names in _files.items() for n in names
    }
    NAME_MAPPINGS.modules |= _registry.modules


def register(model: SequenceModel[Any]) -> None:
    """Make a model known to recipes, files, adapters and the command line.

    Raises ConfigError if the name is taken.
    """
    home = {**ARCHITECTURES.modules, **ENCODERS.modules}.get(model.architecture)
    if home not in (None, type(model).__module__):
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
