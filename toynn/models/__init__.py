"""Models: one file holds all that toynn knows of an architecture.

Importing the file ``register``s the architecture; every command and recipe then knows it. Files of
this package are imported when their architecture is first asked for.
`docs/adding-a-model.md` says how to write one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toynn.models import architectures

if TYPE_CHECKING:
    from toynn.models.checks import check_sizes
    from toynn.models.encoder import Encoder, EncoderConfig
    from toynn.models.gpt2 import GPT2Config
    from toynn.models.hyper import Hyper, Source, check_tensors, refuse
    from toynn.models.llama import LlamaConfig
    from toynn.models.model import Model
    from toynn.models.registry import ARCHITECTURES, ENCODERS, architecture, register
    from toynn.models.sequence import HEAD, TABLE, Folder, SequenceConfig, SequenceModel
    from toynn.models.tables import Row, Shapes, Sizes, experts, matrix, norm, router, table
    from toynn.models.vit import VIT, ViTConfig

__all__ = [
    "ARCHITECTURES",
    "ENCODERS",
    "HEAD",
    "TABLE",
    "VIT",
    "Encoder",
    "EncoderConfig",
    "Folder",
    "GPT2Config",
    "Hyper",
    "LlamaConfig",
    "Model",
    "Row",
    "SequenceConfig",
    "SequenceModel",
    "Shapes",
    "Sizes",
    "Source",
    "ViTConfig",
    "architecture",
    "check_sizes",
    "check_tensors",
    "experts",
    "matrix",
    "norm",
    "refuse",
    "register",
    "router",
    "table",
]

#: Names and their files. Those of all others are sought in the files of architectures.
_HOMES = {
    **dict.fromkeys(("ARCHITECTURES", "ENCODERS", "architecture", "register"), "registry"),
    **dict.fromkeys(("Encoder", "EncoderConfig"), "encoder"),
    **dict.fromkeys(("HEAD", "TABLE", "Folder", "SequenceConfig", "SequenceModel"), "sequence"),
    **dict.fromkeys(("Hyper", "Source", "check_tensors", "refuse"), "hyper"),
    **dict.fromkeys(("Row", "Shapes", "Sizes", "experts", "matrix", "norm"), "tables"),
    **dict.fromkeys(("router", "table"), "tables"),
    **dict.fromkeys(("VIT", "ViTConfig"), "vit"),
    "GPT2Config": "gpt2",
    "LlamaConfig": "llama",
    "Model": "model",
    "check_sizes": "checks",
}

if not TYPE_CHECKING:  # which finds a name in its file

    def __getattr__(name: str) -> Any:
        """Return a name of this package; its file is imported now."""
        if name in _HOMES:
            import_module("toynn.models.registry")  # formats know architectures from now on
            return getattr(import_module(f"toynn.models.{_HOMES[name]}"), name)
        if name[:1].isupper():
            for file in (*architectures.DECODERS, *architectures.ENCODERS):
                if hasattr(module := import_module(f"toynn.models.{file}"), name):
                    return getattr(module, name)
        raise AttributeError(f"toynn.models has no {name!r}")
