"""Read PEFT's adapters: a folder with adapter_config.json and adapter_model.safetensors.

PEFT uses Hugging Face's names of modules and its order of rows. So the rows of B of q and k can be
ordered unlike a GGUF file's. A and B are not transposed, even where Hugging Face's matrices are.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats.adapters.adapter import (
    LORA_A,
    LORA_B,
    LORA_M,
    Adapter,
    Base,
    gguf_architecture,
    is_embedding,
    matrix_of,
)
from toynn.formats.adapters.checks import check_architecture, check_base, check_shapes
from toynn.formats.adapters.fused import split
from toynn.formats.adapters.stacks import unwrapped
from toynn.formats.hf.name_mapping import (
    NAME_MAPPINGS,
    NameMapping,
    pairs_together,
    text_name_of,
)
from toynn.formats.objects import PEFT_CONFIG, PEFT_WEIGHTS, read_object
from toynn.formats.safetensors import SafeTensors

CONFIG, WEIGHTS = PEFT_CONFIG, PEFT_WEIGHTS
ARCHITECTURE = "general.architecture"  # GGUF's key; also in the metadata of the weights
TENSOR = re.compile(
    r"base_model\.model\.(.+)\.(lora_[AB]\.weight|lora_embedding_[AB]|lora_magnitude_vector)"
)
#: PEFT's names of A, B and magnitudes; then those of the embedding table, with A transposed.
SUFFIXES = {"lora_A.weight": LORA_A, "lora_B.weight": LORA_B, "lora_magnitude_vector": LORA_M}
TABLES = {"lora_embedding_A": LORA_A, "lora_embedding_B": LORA_B}
#: Other files of weights, and what they mean.
STRANGERS = {
    "adapters.safetensors": "an adapter of mlx-lm, which is not PEFT's format",
    "adapter_model.bin": "pickled weights, which can run any code; save them as safetensors",
}
#: Keys of adapter_config.json that are read.
READ_KEYS = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"}
READ_KEYS |= {"use_dora", "target_parameters"}
#: Keys that change no number: options of training or of other programs, and the list of modules,
#: which the tensors repeat.
IGNORED_KEYS = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
#: Initializations that leave the base model unchanged. Others move a part of it into the adapter.
INITS = (None, True, False, "gaussian", "orthogonal", "eva")
#: Most repeats in a pattern: with more, or with a repeated group, matching can take for ever.
MAX_REPEATS = 3


def read_peft(folder: Path, base: Base, *, strict: bool = False) -> Adapter:
    """Read a folder. Raises AdapterError for an adapter that PEFT or toynn does not support.

    It is also raised for another architecture, and with ``strict`` for another model.
    """
    for name, meaning in STRANGERS.items():
        if (folder / name).exists() and not (folder / WEIGHTS).exists():
            raise AdapterError(f"{folder / name}: {meaning}; expected {WEIGHTS}")
    config = _Config(folder / CONFIG)
    with closing(SafeTensors(folder / WEIGHTS)) as file:
        made_for = file.metadata.get(ARCHITECTURE, base.architecture)
        check_architecture(file.path, made_for, base)
        mapping = name_mapping_of(folder, made_for).suited(base.metadata)
        tensors, stacks, seen = unwrapped(
            f"{file.path}", mapping, base, config.parameters, file.tensors, file.__getitem__
        )
        for name in sorted(file.tensors.keys() - seen):
            match = TENSOR.fullmatch(name)
            hf_name = text_name_of(f"{match[1]}.weight") if match else None
            weight = mapping.gguf_name(hf_name) if hf_name else None
            if hf_name and not weight and match and (side := SUFFIXES.get(match[2])):
                where = f"{file.path}: tensor {name}"
                if parts := dict(split(where, mapping, base, hf_name, side, file[name])):
                    tensors |= {f"{part}{side}": values for part, values in parts.items()}
                    continue
            kinds = TABLES if weight and is_embedding(weight) else SUFFIXES
            tensor = f"{weight}{kinds[match[2]]}" if match and match[2] in kinds else ""
            if (match and ".base_layer" in match[1]) or name.endswith(".base_layer.weight"):
                raise AdapterError(
                    f"{file.path}: tensor {name}: it belongs to the base model, which toynn reads "
                    "from its own file: save with `save_embedding_layers=False`"
                )
            if not tensor or weight is None or tensor in tensors:
                raise AdapterError(
                    f"{file.path}: tensor {name}: expected base_model.model.<module>.lora_A.weight "
                    f"or .lora_B.weight, of a matrix of arch {mapping.architecture}"
                )
            transposed = match is not None and match[2] == "lora_embedding_A"
            tensors[tensor] = np.ascontiguousarray(file[name].T) if transposed else file[name]
        described = {
            key: text
            for key, text in file.metadata.items()
            if key.startswith(("general.", "adapter.")) and key != ARCHITECTURE
        }
    architecture = gguf_architecture(base)
    adapter = Adapter(architecture, config.alpha, tensors, config.use_rslora, described, file.path)
    if adapter.use_dora != config.use_dora:
        which = "some" if adapter.use_dora else "none"
        raise AdapterError(
            f"{file.path}: lora_magnitude_vector: {CONFIG} has use_dora {config.use_dora}; got "
            f"{which}"
        )
    check_shapes(adapter, base)
    for weight in adapter.pairs:
        module = stacks.get(weight) or mapping.module(weight)
        rank = adapter.rank_of(weight)
        if rank != (expected := config.rank_of(module)):
            raise AdapterError(
                f"{file.path}: {module}: expected rank {expected}, as {CONFIG} says; got {rank}"
            )
        b = tensors[weight + LORA_B] * np.float32(config.alpha_of(module) / config.alpha)
        if weight not in stacks and (heads := heads_in(base, weight)):
            b = pairs_together(b, heads)
            if config.use_dora:
                tensors[weight + LORA_M] = pairs_together(tensors[weight + LORA_M], heads)
        tensors[weight + LORA_B] = np.ascontiguousarray(b)
        if order := order_in(base, weight):
            axis, index = order
            for side in (LORA_A,) if axis else (LORA_B, LORA_M):
                if weight + side in tensors:
                    tensors[weight + side] = np.take(tensors[weight + side], index, axis)
    moved = replace(adapter, tensors=tensors, path=folder)
    check_base(moved, base, strict=strict)
    return moved


class _Config:
    """The keys of adapter_config.json that change numbers; unknown keys are refused by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        config = read_object(path)
        self._expect(
            "peft_type", "'LORA'", config.get("peft_type"), config.get("peft_type") == "LORA"
        )
        bias = config.get("bias", "none")
        self._expect("bias", "'none'", bias, bias == "none")
        init = config.get("init_lora_weights")
        self._expect("init_lora_weights", "one that leaves the base unchanged", init, init in INITS)
        for key, value in config.items():
            is_read = key in READ_KEYS or key in IGNORED_KEYS
            self._expect(key, "nothing: toynn does not support it", value, is_read or not value)
        self.use_rslora = config.get("use_rslora") or False
        self._expect(
            "use_rslora", "true or false", self.use_rslora, self.use_rslora in (True, False)
        )
        self.use_dora = config.get("use_dora") or False
        self._expect("use_dora", "true or false", self.use_dora, self.use_dora in (True, False))
        self.parameters: list[str] = config.get("target_parameters") or []
        texts = isinstance(self.parameters, list) and all(
            isinstance(name, str) for name in self.parameters
        )
        self._expect("target_parameters", "a list of names", self.parameters, texts)
        self._rank = self._number("r", config.get("r"))
        self.alpha = self._number("lora_alpha", config.get("lora_alpha"))
        self._ranks = self._patterns("rank_pattern", config)
        self._alphas = self._patterns("alpha_pattern", config)

    def rank_of(self, module: str) -> float:
        """Return a module's rank."""
        return self._of("rank_pattern", self._ranks, module, self._rank)

    def alpha_of(self, module: str) -> float:
        """Return a module's alpha."""
        return self._of("alpha_pattern", self._alphas, module, self.alpha)

    def _expect(self, key: str, expected: str, got: object, holds: bool) -> None:
        if not holds:
            raise AdapterError(f"{self._path}: {key}: expected {expected}; got {str(got)[:80]!r}")

    def _number(self, key: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        holds = number and 0 < value < float(np.finfo(np.float32).max)
        self._expect(key, "a number above 0", value, holds)
        return float(value)

    def _patterns(self, key: str, config: Mapping[str, Any]) -> dict[str, float]:
        """Return numbers by regular expression of module names."""
        patterns = config.get(key) or {}
        self._expect(key, "an object", patterns, isinstance(patterns, dict))
        for pattern in patterns:
            repeats = len(re.findall(r"[*+{]", pattern))
            simple = repeats <= MAX_REPEATS and not re.search(r"\)[*+?{]", pattern)
            self._expect(key, f"patterns of at most {MAX_REPEATS} repeats", pattern, simple)
        return {pattern: self._number(key, value) for pattern, value in patterns.items()}

    def _of(self, key: str, patterns: Mapping[str, float], module: str, usual: float) -> float:
        """Return the number of the first pattern that matches the end of a module's name."""
        for pattern, value in patterns.items():
            try:
                if re.match(rf"(.*\.)?({pattern})$", module):
                    return value
            except (re.error, OverflowError, RecursionError) as error:
                raise AdapterError(f"{self._path}: {key}: {pattern!r:.80}: {error}") from error
        return usual


def name_mapping_of(path: Path, architecture: str) -> NameMapping:
    """Return Hugging Face's name mapping of an architecture.

    Raises AdapterError for one that toynn does not know.
    """
    if architecture not in NAME_MAPPINGS:
        raise AdapterError(
            f"{path}: expected one of the architectures whose Hugging Face names toynn knows "
            f"({', '.join(NAME_MAPPINGS)}); got {architecture!r}"
        )
    return NAME_MAPPINGS[architecture]


def order_in(base: Base, weight: str) -> tuple[int, NDArray[np.intp]] | None:
    """Return the axis of a weight that PEFT orders differently, and the order; or None.

    Raises AdapterError if the base model's counts do not fit.
    """
    shape = base.tensors[matrix_of(weight, base)].shape
    mapping = name_mapping_of(Path(), base.architecture)
    try:
        return None if mapping.parts_of(weight) else mapping.order(base.metadata, weight, shape)
    except (KeyError, ValueError) as error:
        raise AdapterError(f"{weight}: the base model's {error} does not fit {shape}") from error


def heads_in(base: Base, weight: str) -> int:
    """Return the number of heads of a weight whose rows PEFT orders differently, else 0.

    Raises AdapterError if the rows are not a multiple of two rows for each head.
    """
    heads = name_mapping_of(Path(), base.architecture).heads(base.metadata, weight)
    rows = base.tensors[matrix_of(weight, base)].shape[0]
    if type(heads) is not int or heads < 0 or (heads and rows % (2 * heads)):
        raise AdapterError(f"{weight}: the base model has {heads!r:.80} heads for {rows} rows")
    return heads
