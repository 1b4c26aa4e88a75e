"""The lines of ``toynn info``: what a file or folder holds, and the memory to train it."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from reprlib import repr  # which shortens long arrays
from typing import Any

from toynn import engines
from toynn.engines import ViTConfig, ViTEngine
from toynn.engines.plans import LEVELS, Level, Plan, every_plan
from toynn.errors import AdapterError, DataError, ToynnError
from toynn.formats import adapters, gguf, hf
from toynn.formats.adapters import LORA_A, LORA_B, LORA_M, peft
from toynn.formats.adapters.adapter import is_embedding
from toynn.formats.adapters.identity import called
from toynn.formats.gguf import Strings
from toynn.formats.gguf.tensors import TensorInfo
from toynn.formats.hf import HFModel
from toynn.formats.hf.config import CONFIG, WEIGHTS
from toynn.formats.objects import read_object
from toynn.formats.safetensors import SafeTensors
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.folder import FolderKeys, has_tokenizer
from toynn.graph.reports import Cost
from toynn.jobs.memory import (
    ADAPTER_RANK,
    SHORT,
    memory_if_shorter,
    new_model_over,
    plans_of_adapters,
    plans_of_all_weights,
    read_by_step,
)
from toynn.models import ARCHITECTURES, ENCODERS, Source
from toynn.models.timm import class_names, described
from toynn.options import RecipeOptions
from toynn.runs import Record
from toynn.system.machine import free_memory
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


def of_peft(folder: Path) -> Lines:
    """Describe an adapter in PEFT's format, as far as possible without its base model."""
    config = read_object(folder / peft.CONFIG)
    with closing(SafeTensors(folder / peft.WEIGHTS)) as file:
        tensors, base = file.tensors, called(file.metadata)
    sides: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    kinds = peft.SUFFIXES | peft.TABLES
    for name, info in tensors.items():
        if match := peft.TENSOR.fullmatch(name):
            if kinds[match[2]] != LORA_M and len(info.shape) not in (2, 3):
                where = f"{folder / peft.WEIGHTS}: tensor {name}"
                raise AdapterError(f"{where}: expected a matrix; got {info.type} {info.shape}")
            sides[match[1]][kinds[match[2]]] = info.shape
    whole = {module: pair for module, pair in sides.items() if {LORA_A, LORA_B} <= pair.keys()}
    ranks = {module: pair[LORA_A][0] for module, pair in whole.items()}
    shapes = {module: (pair[LORA_B][0], pair[LORA_A][-1]) for module, pair in whole.items()}
    for name in tensors:
        match = peft.TENSOR.fullmatch(name)
        if match and match[2] in peft.TABLES and match[1] in shapes:
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


#: Files that tell the kind of a folder; the first one present decides.
INSIDE = ("model.gguf", "adapter.gguf", peft.CONFIG, CONFIG, WEIGHTS)


def facts(path: Path, seq: int | None, batch: int, named: str | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about a path: names and texts. Recording steps for the last takes longest."""
    if path.is_dir():
        inside = next((path / name for name in INSIDE if (path / name).is_file()), None)
        if inside is None:
            raise DataError(f"{path}: expected a folder with one of {', '.join(INSIDE)} in it")
        yield from run_of(path)
        yield from facts(inside, seq, batch, named)
        return
    if path.name in (peft.CONFIG, peft.WEIGHTS):
        yield from of_peft(path.parent)
        return
    of_hf = path.name == WEIGHTS and path.with_name(CONFIG).is_file()
    if path.name == CONFIG or of_hf:
        with hf.open(path.parent) as model:
            yield from describe(model, seq, batch, named)
        return
    if path.suffix == ".safetensors":
        yield from safetensors(path, batch)
        return
    with gguf.open(path) as file:
        if file.metadata.get("general.type") == "adapter":
            yield from adapter(path)
        else:
            yield from describe(file, seq, batch, named)


def describe(
    file: Source, seq: int | None, batch: int, named: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the facts about a model's file or folder: names and texts.

    ``named`` is a file or folder with the tokenizer to use.
    """
    metadata, architecture = file.metadata, file.architecture
    lines = [
        ("file", f"{file.path}, {size(file.nbytes)}"),
        ("architecture", architecture),
        ("name", str(metadata.get("general.name", "none"))),
    ]
    if isinstance(file, HFModel):
        lines = [
            ("folder", f"{file.path}, in Hugging Face's format"),
            ("architecture", architecture),
            ("weights", f"{size(file.nbytes)} in {file.files}"),
        ]
    lines += [*types(file.tensors), *_active(file), ("tokenizer", _tokenizer(file, named))]
    yield from lines
    for key, value in metadata.items():
        if key.startswith(f"{architecture}."):
            yield key.removeprefix(f"{architecture}."), _value(value)
    yield from _training(file, seq, batch)


def _active(file: Source) -> Lines:
    """Return the number of parameters that each token uses, if there are experts."""
    if not any(info.name.endswith("_exps.weight") for info in file.tensors.values()):
        return []
    try:
        return [("active parameters", f"{engines.active_parameters(file):,} for each token")]
    except ToynnError:
        return []  # the line about training says why


def _tokenizer(file: Source, named: str | None) -> str:
    """Return the kind of a tokenizer and the number of its tokens."""
    metadata = file.metadata
    if named is not None:
        return f"{Tokenizer.for_model(file, named).vocab_size:,} tokens of {named}"
    if isinstance(file, HFModel):
        if not has_tokenizer(file.path):
            return "none"
        try:
            metadata = FolderKeys(file.path, file.rows).metadata
        except ToynnError as error:
            return f"not readable: {error}"
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind is None or not isinstance(tokens, Strings | list):
        return "none"
    pre = metadata.get("tokenizer.ggml.pre")
    return f"{kind}{f' ({pre})' if isinstance(pre, str) else ''}, {len(tokens):,} tokens"


def _training(file: Source, seq: int | None, batch: int) -> Iterator[tuple[str, str]]:
    """Yield the memory of a training step, or why the model cannot be trained."""
    try:
        engines.check_model(file, [*ARCHITECTURES, *ENCODERS], "info")  # raises first if unknown
        length = seq or min(512, file.require(f"{file.architecture}.context_length", int))
        options = RecipeOptions(t_seq=length, t_batch=batch)
        plans = plans_of_all_weights(file, options)
    except ToynnError as error:
        yield "training", f"not possible: {error}"
        return
    yield from memory(plans, f"{batch} x {length} tokens")
    yield from _adapters(file, replace(options, precision="auto"))  # as a run's default is
    if not isinstance(file, HFModel) and file.architecture not in ENCODERS:
        yield from _new_model(file, length, batch)


def _adapters(file: Source, opts: RecipeOptions) -> Lines:
    """Return the memory of training adapters over the file."""
    try:
        plans = plans_of_adapters(file, opts)
    except ToynnError as error:
        return [("training adapters", f"not possible: {error}")]
    copied = sum(info.nbytes for name, info in file.tensors.items() if file.is_copied(name))
    mapped = sum(info.nbytes for info in file.tensors.values()) - copied
    experts, touched = engines.expert_bytes(file, opts.t_batch * opts.t_seq)
    _, alone = engines.expert_bytes(file, 1)
    step = f"{size(touched)} of {size(experts)} in a step, {size(alone)} for a token alone"
    form = f"{size(copied)} in another form; the peak includes them"
    return [
        (
            "training adapters",
            f"rank {ADAPTER_RANK}, all-linear, {opts.t_batch} x {opts.t_seq} tokens",
        ),
        ("  mapped, not in memory", f"{size(mapped)}, read as it is used"),
        *([("  experts that are read", f"{step}, if chosen evenly")] if experts else []),
        *([("  copied into memory", form)] if copied else []),
        *table(plans),
        *_shorter(file, opts, plans),
        *_room(read_by_step(file, opts.t_batch * opts.t_seq), plans),
    ]


def _shorter(file: Source, opts: RecipeOptions, plans: Sequence[Plan]) -> Lines:
    """Return the memory of a short step if weights are prepacked for it alone.

    It may be larger. A run's rows are as long as its longest example, so they are often short.
    """
    if any(each.memory.prepacked for each in plans):
        return []
    peak, prepacked = memory_if_shorter(file, opts)
    if not prepacked:
        return []
    said = f"{size(peak)}, {size(prepacked)} of it prepacked weights"
    return [(f"  at 1 x {min(SHORT, opts.t_seq)} tokens", said)]


def _room(read: int, plans: Sequence[Plan]) -> Lines:
    """Return whether free memory holds the file's parts that a step reads, and the step itself."""
    free = free_memory()
    if free is None:
        return []
    fitting = [p for p in plans if p.memory.peak + p.of_file(read) <= free]
    if fitting:
        saving = fitting[0].level != LEVELS[0]
        fits = f"enough {fitting[0].name}" if saving else "enough"
    elif plans[-1].memory.peak <= free:
        fits = "too little: parts of the file would be read again in every step"
    else:
        fits = f"too little, even {plans[-1].name}"
    return [("  free here", f"{size(free)}: {fits}")]


def _new_model(file: Source, length: int, batch: int) -> Lines:
    """Return the memory of ``toynn train warm-start`` with the file as donor."""
    config, peak = new_model_over(file, length, batch)
    shape = f"width {config.d_model}, {config.n_layers} layers"
    return [
        ("training a new model", f"with this file as donor, {shape}"),
        ("  its peak", size(peak)),
    ]


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value).strip("'")
