"""Write an adapter in PEFT's format."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats import safetensors
from toynn.formats.adapters.adapter import (
    BASE_NAME,
    LORA_A,
    LORA_B,
    LORA_M,
    Adapter,
    Base,
    is_embedding,
    is_stack,
    text_of,
)
from toynn.formats.adapters.checks import check
from toynn.formats.adapters.forms import no_peft
from toynn.formats.adapters.fused import fused
from toynn.formats.adapters.peft import (
    ARCHITECTURE,
    CONFIG,
    SUFFIXES,
    TABLES,
    WEIGHTS,
    heads_in,
    name_mapping_of,
    order_in,
)
from toynn.formats.adapters.stacks import called_as_experts, wrapped
from toynn.formats.folders import write_together
from toynn.formats.hf.name_mapping import NameMapping, module_of, pairs_apart
from toynn.formats.hub import hub_name


def write_peft(
    folder: str | os.PathLike[str],
    adapter: Adapter,
    base: Base | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write an adapter for PEFT into a folder, which may have other files.

    ``base`` is the adapter's model. It is needed where PEFT orders the rows of q and k by heads.
    With it the configuration can say q_proj instead of naming every block's matrix; of some blocks
    only, layers_to_transform lists these. The configuration also names the base: its name on the
    hub if known, else its path.
    Raises AdapterError for an adapter that PEFT does not support, and for existing files.
    """
    folder = Path(folder)
    for path in (folder / WEIGHTS, folder / CONFIG):
        if os.path.lexists(path) and not overwrite:
            raise AdapterError(
                f"{path}: already exists; pass overwrite=True|--overwrite to replace it"
            )
    mapping = name_mapping_of(folder, (adapter if base is None else base).architecture)
    mapping = mapping if base is None else mapping.suited(base.metadata)
    if base is not None:
        check(adapter, base)
    if why := no_peft(adapter.tensors, mapping.architecture):
        raise AdapterError(f"{os.fspath(adapter.path)}: {why}")
    stacks = wrapped(adapter, mapping)
    plain = {w: _module(adapter, mapping, w) for w in adapter.pairs if not is_stack(w)}
    modules = {weight: name for weight, name in plain.items() if not mapping.parts_of(weight)}
    if base is None and len(modules) < len(plain):
        raise _needs_base(adapter, min(plain.keys() - modules.keys()))
    parts = fused(adapter, mapping, base) if base is not None else {}
    joint = (*stacks, *parts.values())
    arrays = {name: x for adapted in joint for name, x in adapted.tensors.items()}
    for weight in modules:
        a, b = adapter.pairs[weight]
        sides, kinds = {LORA_A: a, LORA_B: b}, SUFFIXES
        if weight in adapter.magnitudes:
            sides[LORA_M] = adapter.magnitudes[weight]
        if heads := _heads(adapter, mapping, base, weight):
            sides |= {k: pairs_apart(values, heads) for k, values in sides.items() if k != LORA_A}
        if order := _order(adapter, mapping, base, weight):
            axis, back = order[0], np.argsort(order[1])
            for side in (LORA_A,) if axis else sides.keys() - {LORA_A}:
                sides[side] = np.take(sides[side], back, axis)
        if is_embedding(weight):
            sides, kinds = {LORA_A: a.T, LORA_B: b}, TABLES
        for side, suffix in kinds.items():
            if suffix in sides:
                name = f"base_model.model.{modules[weight]}.{side}"
                arrays[name] = np.ascontiguousarray(sides[suffix])
    metadata = {"format": "pt", ARCHITECTURE: mapping.architecture, **_texts(adapter.metadata)}
    weights = safetensors.parts(arrays, metadata)
    alike = [module for weight, module in modules.items() if called_as_experts(mapping, weight)]
    targets = modules | {weight: adapted.whole for weight, adapted in parts.items()}
    targets = {weight: module for weight, module in targets.items() if module not in alike}
    settings = _configuration(mapping, adapter, modules, base, alike)
    settings |= _targets(mapping, targets, base)
    if stacks or alike:
        parameters = [stack.whole for stack in stacks] + [f"{module}.weight" for module in alike]
        settings["target_parameters"] = parameters
    for adapted in joint:
        settings["rank_pattern"][adapted.whole] = adapted.rank
        settings["alpha_pattern"][adapted.whole] = adapted.alpha
    config = json.dumps(settings, indent=2) + "\n"
    write_together(folder, {WEIGHTS: weights, CONFIG: config.encode()}, AdapterError)


def _module(adapter: Adapter, mapping: NameMapping, weight: str) -> str:
    """Return a weight's module at Hugging Face."""
    try:
        is_weight = mapping.name(weight).endswith(".weight")
    except (KeyError, IndexError):
        is_weight = False
    if not is_weight:
        raise AdapterError(
            f"{os.fspath(adapter.path)}: {weight}: expected a matrix of arch "
            f"{mapping.architecture} that PEFT has a lora_A and lora_B for"
        )
    return mapping.module(weight)


def _heads(adapter: Adapter, mapping: NameMapping, base: Base | None, weight: str) -> int:
    """Return the number of heads of a weight whose rows PEFT orders differently, else 0."""
    if base is not None:
        return heads_in(base, weight)
    try:
        return mapping.heads({}, weight)
    except KeyError as error:
        raise _needs_base(adapter, weight) from error


def _order(
    adapter: Adapter, mapping: NameMapping, base: Base | None, weight: str
) -> tuple[int, NDArray[np.intp]] | None:
    """Return the axis of a weight that PEFT orders differently, and the order; or None."""
    if base is not None:
        return order_in(base, weight)
    if module_of(weight) in mapping.orders:
        raise _needs_base(adapter, weight)
    return None


def _needs_base(adapter: Adapter, weight: str) -> AdapterError:
    return AdapterError(
        f"{os.fspath(adapter.path)}: {weight}: PEFT orders its rows by heads, whose number is "
        f"unknown; name the base model (base=|--model)"
    )


def _texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that safetensors can store and return unchanged: printable strings."""
    texts = {key: text_of(metadata, key) for key in metadata}
    return {key: text for key, text in texts.items() if text and text.isprintable()}


def _configuration(
    mapping: NameMapping,
    adapter: Adapter,
    modules: Mapping[str, str],
    base: Base | None,
    alike: Collection[str],
) -> dict[str, Any]:
    """Return all keys that PEFT writes.

    Modules in ``alike`` appear twice in patterns: as parameters for PEFT, as modules for toynn.
    """
    rank, alpha = adapter.rank, adapter.alpha
    name, revision = (None, None) if base is None else hub_name(Path(base.path))
    ranks = {module: adapter.rank_of(weight) for weight, module in modules.items()}
    others = {
        name: pair_rank
        for module, pair_rank in ranks.items()
        if pair_rank != rank
        for name in (module, *[f"{module}.weight"] * (module in alike))
    }
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name or text_of(adapter.metadata, BASE_NAME) or None,
        "r": rank,
        "rank_pattern": others,
        # alpha 0 means s = 1 in llama.cpp: PEFT needs alpha = r.
        "lora_alpha": alpha or rank,
        "alpha_pattern": {} if alpha else others,
        "use_rslora": adapter.use_rslora and alpha > 0,
        "fan_in_fan_out": bool(mapping.transposed),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": adapter.use_dora,
        "modules_to_save": None,
        "auto_mapping": None,
        "revision": revision,
    }


def _targets(mapping: NameMapping, modules: Mapping[str, str], base: Base | None) -> dict[str, Any]:
    """Return the keys that say which modules are adapted.

    A part of blocks, such as q_proj, gets its shortest unambiguous name if it is adapted in every
    block that has any adapter. Other modules get their whole names, to which layers_to_transform
    does not apply.
    """
    hf_names = set(mapping.parts.values())
    blocks = sorted({_block_of(weight) for weight in modules if weight.startswith("blk.")})
    targets, some, pattern = set(), False, ""
    for weight, module in modules.items():
        part = module_of(weight).removeprefix("blk.{n}.")
        places = [n for n in base.tensors if n.endswith(f".{part}.weight")] if base else []
        within = [place for place in places if _block_of(place) in blocks]
        if (
            not weight.startswith("blk.")
            or not places
            or any(place not in modules for place in within)
        ):
            targets.add(module)
            continue
        name = mapping.parts[part]
        last = name.rpartition(".")[2]
        alone = sum(name.endswith(f".{last}") for name in hf_names) == 1
        targets.add(last if alone else name)
        some |= within != places
        pattern = module.removesuffix(f".{name}").split(".")[-2]  # "layers" of model.layers.0
    return {
        "target_modules": sorted(targets),
        "layers_to_transform": blocks if some else None,
        "layers_pattern": pattern if some else None,
    }


def _block_of(weight: str) -> int:
    return int(weight.split(".")[1])
