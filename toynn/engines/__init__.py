"""Engines: everything around a model. Life cycle, training step, decoding, files, adapters."""

from dataclasses import replace
from typing import Any

from toynn.engines import files
from toynn.engines.files import check_model
from toynn.engines.policy import PolicyOptions
from toynn.engines.preference import PreferenceOptions
from toynn.engines.sequence import SequenceEngine
from toynn.engines.targets import AdapterOptions
from toynn.engines.upstream import GPT2Config, GPT2SeqEngine, LlamaConfig, LlamaSeqEngine
from toynn.engines.vit import ViTConfig, ViTEngine
from toynn.formats.adapters import Adapter
from toynn.models import ARCHITECTURES, ENCODERS, Source
from toynn.options import RecipeOptions

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


def active_parameters(file: Source) -> int:
    """Return the number of parameters that a token uses; of the experts, only the chosen ones.

    Raises GGUFError for a file that is not a model toynn knows.
    """
    cfg, options = files.config_of(file)
    return ARCHITECTURES[file.architecture].active(cfg, RecipeOptions(**options))


def expert_bytes(file: Source, tokens: int) -> tuple[int, int]:
    """Return the bytes of all experts in a file, and of those that ``tokens`` tokens use.

    The second is an expected value: each token chooses K of E experts evenly and independently, so
    it leaves an expert out with probability 1 - K/E. Both are 0 without experts. Raises GGUFError
    for a file that is not a model toynn knows.
    """
    if file.architecture in ENCODERS:
        return 0, 0
    cfg, _ = files.config_of(file)
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
    engine = SequenceEngine[Any](backend)
    if adapter is not None:
        engine.enable_lora(AdapterOptions.of(adapter), train=False)
    engine.realize_for_mmap(file, None, replace(options or RecipeOptions(), prepack="never"))
    if adapter is not None:
        engine.load_adapter(adapter)
    return engine
