"""Engines: everything around a model. Life cycle, training step, decoding, files, adapters."""

from typing import TYPE_CHECKING

from toynn.system.later import names

if TYPE_CHECKING:
    from toynn.engines.files import active_parameters, check_model, expert_bytes
    from toynn.engines.objectives import PolicyOptions, PreferenceOptions
    from toynn.engines.sequence import SequenceEngine, frozen
    from toynn.engines.targets import AdapterOptions
    from toynn.engines.upstream import GPT2Config, GPT2SeqEngine, LlamaConfig, LlamaSeqEngine
    from toynn.engines.vit import ViTConfig, ViTEngine

__all__ = [
    "AdapterOptions",
    "GPT2Config",
    "GPT2SeqEngine",
    "LlamaConfig",
    "LlamaSeqEngine",
    "PolicyOptions",
    "PreferenceOptions",
    "SequenceEngine",
    "ViTConfig",
    "ViTEngine",
    "active_parameters",
    "check_model",
    "expert_bytes",
    "frozen",
]

_HOMES = {
    **dict.fromkeys(("active_parameters", "check_model", "expert_bytes"), "files"),
    **dict.fromkeys(("PolicyOptions", "PreferenceOptions"), "objectives"),
    **dict.fromkeys(("SequenceEngine", "frozen"), "sequence"),
    **dict.fromkeys(("GPT2Config", "GPT2SeqEngine", "LlamaConfig", "LlamaSeqEngine"), "upstream"),
    **dict.fromkeys(("ViTConfig", "ViTEngine"), "vit"),
    "AdapterOptions": "targets",
}
__getattr__ = names(__name__, _HOMES)
