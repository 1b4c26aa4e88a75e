"""Engines: everything around a model. Life cycle, training step, decoding, files, adapters."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from toynn.engines import files
from toynn.engines.gpt2 import GPT2Config, GPT2SeqEngine
from toynn.engines.llama import LlamaConfig, LlamaSeqEngine
from toynn.engines.preference import PreferenceOptions
from toynn.engines.sequence import SequenceEngine
from toynn.engines.targets import AdapterOptions
from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.formats.adapters import Adapter
from toynn.formats.foreign import foreign
from toynn.models import ARCHITECTURES, Source, refuse
from toynn.options import RecipeOptions

__all__ = [
    "ENGINES",
    "AdapterOptions",
    "GPT2Config",
    "GPT2SeqEngine",
    "LlamaConfig",
    "LlamaSeqEngine",
    "PreferenceOptions",
    "SequenceEngine",
    "ViTConfig",
    "ViTEngine",
    "active_parameters",
    "engine_for",
    "expert_bytes",
    "frozen",
]


class _Engines(Mapping[str, type[SequenceEngine[Any]]]):
    """The engine of each registered architecture; GPT-2 and Llama have upstream's engines."""

    def __getitem__(self, name: str) -> type[SequenceEngine[Any]]:
        own = ARCHITECTURES[name].config_type
        for engine in (GPT2SeqEngine, LlamaSeqEngine):
            if issubclass(own, engine.config_type):
                return engine
        return SequenceEngine

    def __iter__(self) -> Iterator[str]:
        return iter(ARCHITECTURES)

    def __len__(self) -> int:
        return len(ARCHITECTURES)


#: The engine for each architecture of GGUF files.
ENGINES: Mapping[str, type[SequenceEngine[Any]]] = _Engines()


def engine_for(file: Source) -> type[SequenceEngine[Any]]:
    """Return the engine of a file's architecture. Raises GGUFError if there is none."""
    if not file.tensors:
        refuse(file, "it has a vocabulary and no weights: a tokenizer (--tokenizer), not a model")
    if file.architecture not in ENGINES:
        known = f"its architecture is {file.architecture!r}; toynn has {', '.join(ENGINES)}"
        refuse(file, foreign([file.architecture]) or known)
    return ENGINES[file.architecture]


def active_parameters(file: Source) -> int:
    """Return the number of parameters that a token uses; of the experts, only the chosen ones.

    Raises GGUFError for a file that is not a model toynn knows.
    """
    engine = engine_for(file)
    cfg, options = files.config_of(file, engine.architectures, engine.__name__)
    return ARCHITECTURES[file.architecture].active(cfg, RecipeOptions(**options))


def expert_bytes(file: Source, tokens: int) -> tuple[int, int]:
    """Return the bytes of all experts in a file, and of those that ``tokens`` tokens use.

    The second is an expected value: each token chooses K of E experts evenly and independently, so
    it leaves an expert out with probability 1 - K/E. Both are 0 without experts. Raises GGUFError
    for a file that is not a model toynn knows.
    """
    engine = engine_for(file)
    cfg, _ = files.config_of(file, engine.architectures, engine.__name__)
    left_out = (1 - ARCHITECTURES[file.architecture].used(cfg)) ** tokens
    stacks = (info for info in file.tensors.values() if info.name.endswith("_exps.weight"))
    nbytes = sum(info.nbytes for info in stacks)
    return nbytes, round(nbytes * (1 - left_out))


def frozen(
    file: Source,
    adapter: Adapter | None = None,
    backend: str = "cpu",
    options: RecipeOptions | None = None,
) -> SequenceEngine[Any]:
    """Return an engine over the weights of a file as stored there, with an adapter if given.

    The engine is for logits and generation: it takes no memory for training, and prepacks no
    weights. The file may be closed; it stays mapped as long as the engine lives. Raises GGUFError,
    AdapterError.
    """
    engine = engine_for(file)(backend)
    if adapter is not None:
        engine.enable_lora(AdapterOptions.of(adapter), train=False)
    engine.realize_for_mmap(file, None, replace(options or RecipeOptions(), prepack="never"))
    if adapter is not None:
        engine.load_adapter(adapter)
    return engine
