"""The registry of architectures: a file registers its own once one of their names is asked for."""

from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.name_mapping import NAME_MAPPINGS, Registry
from toynn.models.sequence import SequenceModel

#: Models that predict the next token, by general.architecture of GGUF files; and encoders.
ARCHITECTURES: Registry[SequenceModel[Any]] = Registry()
ENCODERS: Registry[SequenceModel[Any]] = Registry()

#: The files of this package that register architectures, and the names, in the order of lists.
_DECODERS = {
    "llama": ("llama", "qwen2", "qwen3"),
    "cohere2": ("cohere2",),
    "deepseek2": ("deepseek2",),
    "ernie4_5": ("ernie4_5",),
    "ernie4_5moe": ("ernie4_5-moe",),
    "olmo2": ("olmo2",),
    "exaone4": ("exaone4",),
    "gemma": ("gemma2", "gemma3"),
    "gemma3n": ("gemma3n",),
    "gemma4": ("gemma4",),
    "glm4": ("glm4",),
    "glm4moe": ("glm4moe",),
    "gpt2": ("gpt2",),
    "gptoss": ("gpt-oss",),
    "granite": ("granite",),
    "granitemoe": ("granitemoe",),
    "granitehybrid": ("granitehybrid",),
    "hunyuan": ("hunyuan-dense",),
    "lfm2": ("lfm2",),
    "lfm2moe": ("lfm2moe",),
    "ministral3": ("mistral3",),
    "nemotronh": ("nemotron_h", "nemotron_h_moe"),
    "olmoe": ("olmoe",),
    "phi3": ("phi3",),
    "qwen3moe": ("qwen3moe",),
    "qwen35": ("qwen35",),
    "qwen35moe": ("qwen35moe",),
    "qwen3next": ("qwen3next",),
    "seed_oss": ("seed_oss",),
    "smollm3": ("smollm3",),
    "starcoder2": ("starcoder2",),
}
_ENCODERS = {
    "bert": ("bert", "roberta", "xlm-roberta", "distilbert"),
    "modernbert": ("modern-bert",),
}
for _registry, _files in ((ARCHITECTURES, _DECODERS), (ENCODERS, _ENCODERS)):
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
