"""``toynn info PATH``: the contents of a file or folder, and the memory to train it."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr  # which shortens long arrays
from typing import Any

from toynn import engines
from toynn.cli import _info_lines
from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.cli._info_lines import Lines, types
from toynn.engines.plans import LEVELS, Plan
from toynn.errors import DataError, ToynnError
from toynn.formats import gguf, hf
from toynn.formats.adapters import peft
from toynn.formats.gguf import Strings
from toynn.formats.hf import HFModel
from toynn.formats.hf.config import CONFIG, WEIGHTS
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.folder import FolderKeys, has_tokenizer
from toynn.jobs.memory import (
    ADAPTER_RANK,
    SHORT,
    memory_if_shorter,
    new_model_over,
    plans_of_adapters,
    plans_of_all_weights,
    read_by_step,
)
from toynn.jobs.paths import local_path, model_file, path_or_name
from toynn.jobs.text import TOKENIZER
from toynn.models import ARCHITECTURES, ENCODERS, Source
from toynn.options import RecipeOptions, whole
from toynn.system.machine import free_memory
from toynn.system.printing import size

#: Files that tell the kind of a folder; the first one present decides.
INSIDE = ("model.gguf", "adapter.gguf", peft.CONFIG, CONFIG, WEIGHTS)


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "info")
    kinds = (
        "a .gguf file (model or adapter), .safetensors file, run folder, Hugging Face folder or "
        "PEFT folder"
    )
    parser.add_argument("path", type=path_or_name, metavar="PATH", help=kinds)
    batch = "sequences per step (default 1)"
    parser.add_argument("--batch", type=whole(1), default=1, metavar="N", help=batch)
    seq = "tokens per sequence (default: the model's context, at most 512)"
    parser.add_argument("--seq", type=whole(1), metavar="N", help=seq)
    add(parser, TOKENIZER)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print one line for each fact."""
    named = arguments.tokenizer and model_file(arguments.tokenizer)
    lines = _lines(local_path(arguments.path), arguments.seq, arguments.batch, named)
    for name, value in lines:
        line = f"{name:24} {value}"
        print("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line))
    return 0


def _lines(path: Path, seq: int | None, batch: int, named: str | None) -> Lines:
    """Return the facts about a path: names and texts."""
    if path.is_dir():
        inside = next((path / name for name in INSIDE if (path / name).is_file()), None)
        if inside is None:
            raise DataError(f"{path}: expected a folder with one of {', '.join(INSIDE)} in it")
        return _info_lines.run_of(path) + _lines(inside, seq, batch, named)
    if path.name in (peft.CONFIG, peft.WEIGHTS):
        return _info_lines.peft(path.parent)
    of_hf = path.name == WEIGHTS and path.with_name(CONFIG).is_file()
    if path.name == CONFIG or of_hf:
        with hf.open(path.parent) as model:
            return describe(model, seq, batch, named)
    if path.suffix == ".safetensors":
        return _info_lines.safetensors(path, batch)
    with gguf.open(path) as file:
        is_adapter = file.metadata.get("general.type") == "adapter"
        return _info_lines.adapter(path) if is_adapter else describe(file, seq, batch, named)


def describe(file: Source, seq: int | None, batch: int, named: str | None = None) -> Lines:
    """Return the facts about a model's file or folder: names and texts.

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
    for key, value in metadata.items():
        if key.startswith(f"{architecture}."):
            lines.append((key.removeprefix(f"{architecture}."), _value(value)))
    return lines + _training(file, seq, batch)


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


def _training(file: Source, seq: int | None, batch: int) -> Lines:
    """Return the memory of a training step, or why the model cannot be trained."""
    try:
        engines.check_model(file, [*ARCHITECTURES, *ENCODERS], "info")  # raises first if unknown
        length = seq or min(512, file.require(f"{file.architecture}.context_length", int))
        options = RecipeOptions(t_seq=length, t_batch=batch)
        plans = plans_of_all_weights(file, options)
    except ToynnError as error:
        return [("training", f"not possible: {error}")]
    encodes = file.architecture in ENCODERS
    return [
        *_info_lines.memory(plans, f"{batch} x {length} tokens"),
        *_adapters(file, replace(options, precision="auto")),  # as a run's default is
        *([] if isinstance(file, HFModel) or encodes else _new_model(file, length, batch)),
    ]


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
        *_info_lines.table(plans),
        *_shorter(file, opts, plans),
        *_room(read_by_step(file, opts.t_batch * opts.t_seq), plans),
    ]


def _shorter(file: Source, opts: RecipeOptions, plans: Sequence[Plan]) -> Lines:
    """Return the memory of a short step if weights are prepacked for it alone.

    It may be larger. A run's rows are as long as its longest example, so they are often short.
    """
    peak, prepacked = memory_if_shorter(file, opts)
    if not prepacked or any(each.memory.prepacked for each in plans):
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
