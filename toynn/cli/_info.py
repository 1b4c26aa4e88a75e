"""The lines of ``toynn info``: what a file or folder holds; _info_memory.py has the rest.

What only some files need is imported for them: the first lines of a large model appear at once.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from math import prod
from pathlib import Path
from reprlib import repr  # which shortens long arrays
from typing import TYPE_CHECKING, Any

from toynn.errors import AdapterError, DataError, ToynnError
from toynn.formats import gguf
from toynn.formats.gguf import GGUFFile, Strings
from toynn.formats.gguf.tensors import TensorInfo
from toynn.formats.hf.config import CONFIG, WEIGHTS
from toynn.formats.objects import PEFT_CONFIG, PEFT_WEIGHTS, read_object
from toynn.system.printing import size
from toynn.system.reading import read_bytes

if TYPE_CHECKING:
    from toynn.models import Source

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
    from toynn.runs.record import Record

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
    from toynn.formats import adapters
    from toynn.formats.adapters import is_embedding
    from toynn.formats.adapters.identity import called

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
    from toynn.formats.adapters import LORA_A, LORA_B, LORA_M, peft
    from toynn.formats.adapters.identity import called
    from toynn.formats.safetensors import SafeTensors

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
    from toynn.cli._info_memory import of_pictures
    from toynn.formats.safetensors import SafeTensors
    from toynn.models import ViTConfig
    from toynn.models.timm import class_names, described

    with closing(SafeTensors(path)) as file:
        lines = [("file", f"{path}, {size(path.stat().st_size)}")]
        try:
            fields = described(file, list(asdict(ViTConfig())), {})
            names = class_names(file, fields["classes"])
            config = ViTConfig(**fields | {"classes": fields["classes"] or 1})
            needed = of_pictures(config, batch)
        except ToynnError as error:
            notes = [(f"  {key}", str(text)) for key, text in file.metadata.items()]
            what = f"not a model of pictures: {error}"
            return [*lines, *types(file.tensors), *notes, ("model", what)]
        lines += [("architecture", "vision transformer, by timm's names"), *types(file.tensors)]
        lines += [(name, str(value)) for name, value in fields.items()]
        shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        lines += [("names of classes", shown or "none")]
        return [*lines, *needed]


#: Files that tell the kind of a folder; the first one present decides.
INSIDE = ("model.gguf", "adapter.gguf", PEFT_CONFIG, CONFIG, WEIGHTS)


def facts(path: Path, seq: int | None, batch: int, named: str | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about a path: names and texts. Recording steps for the last takes longest."""
    if path.is_dir():
        inside = next((path / name for name in INSIDE if (path / name).is_file()), None)
        if inside is None:
            raise DataError(f"{path}: expected a folder with one of {', '.join(INSIDE)} in it")
        yield from run_of(path)
        yield from facts(inside, seq, batch, named)
        return
    if path.name in (PEFT_CONFIG, PEFT_WEIGHTS):
        yield from of_peft(path.parent)
        return
    of_hf = path.name == WEIGHTS and path.with_name(CONFIG).is_file()
    if path.name == CONFIG or of_hf:
        from toynn.formats import hf
        from toynn.models import registry  # noqa: F401  # formats know architectures from now on

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
    file: "Source", seq: int | None, batch: int, named: str | None = None
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
    if not isinstance(file, GGUFFile):
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
    from toynn.cli._info_memory import training

    yield from training(file, seq, batch)


def _active(file: "Source") -> Lines:
    """Return the number of parameters that each token uses, if there are experts."""
    if not any(info.name.endswith("_exps.weight") for info in file.tensors.values()):
        return []
    from toynn import engines

    try:
        return [("active parameters", f"{engines.active_parameters(file):,} for each token")]
    except ToynnError:
        return []  # the line about training says why


def _tokenizer(file: "Source", named: str | None) -> str:
    """Return the kind of a tokenizer and the number of its tokens."""
    metadata = file.metadata
    if named is not None:
        from toynn.formats.tokenizer import Tokenizer

        return f"{Tokenizer.for_model(file, named).vocab_size:,} tokens of {named}"
    if not isinstance(file, GGUFFile):
        from toynn.formats.tokenizer.folder import FolderKeys, has_tokenizer

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


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value).strip("'")
