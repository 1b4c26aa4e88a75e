"""``toynn info`` for adapters, run folders and safetensors files."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from toynn.engines import ViTConfig, ViTEngine
from toynn.engines.plans import Level, Plan, every_plan
from toynn.errors import AdapterError, DataError, ToynnError
from toynn.formats import adapters
from toynn.formats.adapters import LORA_A, LORA_B, LORA_M
from toynn.formats.adapters import peft as peft_folder
from toynn.formats.adapters.adapter import is_embedding
from toynn.formats.adapters.identity import called
from toynn.formats.gguf.tensors import TensorInfo
from toynn.formats.objects import read_object
from toynn.formats.safetensors import SafeTensors
from toynn.graph.reports import Cost
from toynn.models.timm import class_names, described
from toynn.options import RecipeOptions
from toynn.runs import Record
from toynn.system.printing import size
from toynn.system.reading import read_bytes

Lines = list[tuple[str, str]]

SHOWN = 8  # most names of classes in a line


def types(tensors: Mapping[str, TensorInfo]) -> Lines:
    """Return the number of parameters, and a line for each type, the largest first."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for info in tensors.values():
        for i, amount in enumerate((info.nbytes, prod(info.shape), 1)):
            totals[info.type][i] += amount
    parameters = sum(count for _, count, _ in totals.values())
    return [
        ("parameters", f"{parameters:,} in {len(tensors)} tensors"),
        *(
            (f"  {type}", f"{count:,} in {number} tensors, {size(nbytes)}")
            for type, (nbytes, count, number) in sorted(
                totals.items(), key=lambda row: row[1][::-1]
            )
        ),
    ]


def memory(plans: Sequence[Plan], what: str) -> Lines:
    """Return the memory of a training step by each plan; ``what`` is the size of its batch."""
    parts = ("weights", "moments", "gradients", "activations", "peak")
    return [
        ("training all weights", f"{what} a step"),
        *((f"  {part}", size(getattr(plans[0].memory, part))) for part in parts),
        *table(plans)[1:],
    ]


def table(plans: Sequence[Plan]) -> Lines:
    """Return the peak memory of each plan, and how much slower it is than the first."""
    return [
        (
            f"  {each.name or 'peak beside the file'}",
            size(each.memory.peak) + each.slower(plans[0]),
        )
        for each in plans
    ]


def run_of(folder: Path) -> Lines:
    """Return what config.toml says about a folder's run; without such a file, no lines."""
    try:
        tables = tomllib.loads(read_bytes(folder / "config.toml").decode())
        run, train, data = tables["run"], tables["train"], tables["data"]
        count = int(run.get("steps", train.get("steps")))
        steps = f"{count} steps, batch {train['batch']}, seed {train['seed']}"
        lines = [("run", f"toynn train {run['recipe']}, {steps}"), ("  data", str(data["name"]))]
        lines += [("  model", str(train["model"]))] if "model" in train else []
        return lines + _reached(folder, count)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _reached(folder: Path, steps: int) -> Lines:
    """Return how far a run came, its best and its last losses, and how to resume it."""
    try:
        record = Record.read(folder)
    except DataError:
        return [("  state", "no report yet")]
    lines = [("  steps reached", f"{record.steps} of {steps}")]
    if trained := record.numbers("train_loss"):
        lines.append(("  training loss", f"{trained[-1][1]:.4f} at step {trained[-1][0]}"))
    if best := record.best():
        which = "the best" if record.metric == "loss" else f"the best by {record.metric}"
        lines.append(("  validation loss", f"{best[1]:.4f} at step {best[0]}, {which}"))
    state = record.state[1]
    if record.steps < steps and any(folder.glob("checkpoint-*")):
        state += f": toynn train --resume {folder}"
    return [*lines, ("  state", state)]


# -- Adapters ----------------------------------------------------------------------------------


def adapter(path: Path) -> Lines:
    """Describe an adapter in a GGUF file."""
    loaded = adapters.load(path)
    shapes = {
        weight: (a.shape[0], b.shape[0]) if is_embedding(weight) else (*b.shape[:-1], a.shape[-1])
        for weight, (a, b) in loaded.pairs.items()
    }
    ranks = {weight: loaded.rank_of(weight) for weight in shapes}
    return [
        ("file", f"{path}, {size(path.stat().st_size)}"),
        ("adapter", "LoRA, as llama.cpp reads it"),
        ("architecture", loaded.architecture),
        ("base model", called(loaded.metadata) or "not named"),
        *_scales(ranks, loaded.alpha, loaded.use_rslora),
        ("parameters", f"{sum(values.size for values in loaded.tensors.values()):,}"),
        ("needs a base with", f"the architecture {loaded.architecture}, and matrices (out x in):"),
        *_matrices(shapes),
    ]


def peft(folder: Path) -> Lines:
    """Describe an adapter in PEFT's format, as far as possible without its base model."""
    config = read_object(folder / peft_folder.CONFIG)
    with closing(SafeTensors(folder / peft_folder.WEIGHTS)) as file:
        tensors, base = file.tensors, called(file.metadata)
    sides: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    kinds = peft_folder.SUFFIXES | peft_folder.TABLES
    for name, info in tensors.items():
        if match := peft_folder.TENSOR.fullmatch(name):
            if kinds[match[2]] != LORA_M and len(info.shape) not in (2, 3):
                where = f"{folder / peft_folder.WEIGHTS}: tensor {name}"
                raise AdapterError(f"{where}: expected a matrix; got {info.type} {info.shape}")
            sides[match[1]][kinds[match[2]]] = info.shape
    whole = {module: pair for module, pair in sides.items() if {LORA_A, LORA_B} <= pair.keys()}
    ranks = {module: pair[LORA_A][0] for module, pair in whole.items()}
    shapes = {module: (pair[LORA_B][0], pair[LORA_A][-1]) for module, pair in whole.items()}
    for name in tensors:
        match = peft_folder.TENSOR.fullmatch(name)
        if match and match[2] in peft_folder.TABLES and match[1] in shapes:
            pair = whole[match[1]]  # A (r, vocabulary), B (width, r)
            shapes[match[1]] = pair[LORA_A][1], pair[LORA_B][0]
    magnitudes = any(LORA_M in pair for pair in whole.values())
    alpha, targets = config.get("lora_alpha"), config.get("target_modules")
    return [
        ("folder", f"{folder}, {size(sum(info.nbytes for info in tensors.values()))}"),
        (
            "adapter",
            f"{config.get('peft_type', 'unknown')}{' with magnitudes (DoRA)' * magnitudes}, in "
            "PEFT's format",
        ),
        ("base model", base or str(config.get("base_model_name_or_path") or "not named")),
        *_scales(ranks, alpha, config.get("use_rslora") is True),
        ("targets", ", ".join(map(str, targets)) if isinstance(targets, list) else str(targets)),
        *types(tensors)[:1],
        ("needs a base with", "modules of these names and shapes (out x in):"),
        *_matrices(shapes),
    ]


def _scales(ranks: Mapping[str, int], alpha: Any, rslora: bool) -> Lines:
    """Return the ranks, and the scale of B A."""
    numbers = ", ".join(map(str, sorted(set(ranks.values())))) or "none"
    kind = "alpha / sqrt(rank)" if rslora else "alpha / rank"
    number = f"{alpha:g}" if isinstance(alpha, int | float) else str(alpha)
    return [("rank", numbers), ("alpha", f"{number}: B A is scaled by {kind}")]


def _matrices(shapes: Mapping[str, tuple[int, int]]) -> Lines:
    """Return a line for each name and shape; matrices of different blocks share a line."""
    alike: dict[tuple[str, tuple[int, int]], int] = defaultdict(int)
    for name, shape in shapes.items():
        alike[re.sub(r"\.\d+\.", ".*.", name), shape] += 1
    return [
        (f"  {out} x {into}", name + (f", {count} of them" if count > 1 else ""))
        for (name, (out, into)), count in alike.items()
    ]


# -- Models ------------------------------------------------------------------------------------


def safetensors(path: Path, batch: int) -> Lines:
    """Describe a safetensors file: a model of pictures, or just its tensors."""
    with closing(SafeTensors(path)) as file:
        lines = [("file", f"{path}, {size(path.stat().st_size)}")]
        try:
            fields = described(file, list(asdict(ViTConfig())), {})
            names = class_names(file, fields["classes"])
            config = ViTConfig(**fields | {"classes": fields["classes"] or 1})
            needed = every_plan(lambda level: _vit(config, batch, level))
        except ToynnError as error:
            notes = [(f"  {key}", str(text)) for key, text in file.metadata.items()]
            what = f"not a model of pictures: {error}"
            return [*lines, *types(file.tensors), *notes, ("model", what)]
        lines += [("architecture", "vision transformer, by timm's names"), *types(file.tensors)]
        lines += [(name, str(value)) for name, value in fields.items()]
        shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        lines += [("names of classes", shown or "none")]
        return [*lines, *memory(needed, f"{batch} pictures")]


def _vit(config: ViTConfig, batch: int, level: Level) -> Mapping[str, Cost]:
    """Return the memory and the time of a step of a vision transformer."""
    engine = ViTEngine()
    engine.declare(config, RecipeOptions(t_batch=batch, **level._asdict()))
    return engine.step_costs(["never"])
