"""Model architectures: configuration, weight names, initial weights, forward pass."""

from typing import Any

from toynn.engines._decoding import DecodingEngine
from toynn.engines._hyper import refuse
from toynn.engines._lora import LoRAEngine
from toynn.engines._sequence import SequenceEngine
from toynn.engines._targets import AdapterOptions
from toynn.engines.gpt2 import GPT2Config, GPT2SeqEngine
from toynn.engines.llama import LlamaConfig, LlamaSeqEngine
from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.formats.adapters import Adapter
from toynn.formats.gguf import GGUFFile
from toynn.options import RecipeOptions
from toynn.reports import Memory

__all__ = [
    "ENGINES",
    "AdapterOptions",
    "DecodingEngine",
    "GPT2Config",
    "GPT2SeqEngine",
    "LlamaConfig",
    "LlamaSeqEngine",
    "LoRAEngine",
    "SequenceEngine",
    "ViTConfig",
    "ViTEngine",
    "engine_for",
    "frozen",
    "memory_for",
]

#: The engine for each architecture of GGUF files.
ENGINES: dict[str, type[LoRAEngine[Any]]] = {
    architecture: engine
    for engine in (GPT2SeqEngine, LlamaSeqEngine)
    for architecture in engine.architectures
}


def engine_for(file: GGUFFile) -> type[LoRAEngine[Any]]:
    """Return the engine of a file's architecture. Raises GGUFError if there is none."""
    if file.architecture not in ENGINES:
        refuse(file, f"its architecture is {file.architecture!r}; toynn has {', '.join(ENGINES)}")
    return ENGINES[file.architecture]


def frozen(file: GGUFFile, adapter: Adapter | None = None, backend: str = "cpu") -> LoRAEngine[Any]:
    """Return an engine over the weights of a file as they lie there, with an adapter if given.

    For logits and generation: nothing is trained, and no memory taken for that. The file may be
    closed; it stays mapped as long as the engine lives. Raises GGUFError, AdapterError.
    """
    engine = engine_for(file)(backend)
    if adapter is not None:
        engine.enable_lora(AdapterOptions.of(adapter), train=False)
    engine.realize_for_mmap(file, None, RecipeOptions())
    if adapter is not None:
        engine.load_adapter(adapter)
    return engine


def memory_for(file: GGUFFile, t_seq: int | None = None, t_batch: int = 1) -> tuple[Memory, int]:
    """Return the memory that training a file's model would need, and its sequence length.

    The default length is the model's context, but at most 512. No memory is taken.
    """
    engine = engine_for(file)
    if t_seq is None:
        t_seq = min(512, file.require(f"{file.architecture}.context_length", int))
    return engine.memory_for(file, t_seq, t_batch), t_seq
