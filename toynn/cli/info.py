"""``toynn info FILE``: what a GGUF file holds, and the memory that training it would need."""

from argparse import Namespace
from collections import defaultdict
from math import prod
from reprlib import repr  # which shortens long arrays
from typing import Any

from toynn import engines
from toynn.cli._numbers import whole
from toynn.cli._paths import model_file
from toynn.cli.models import FRESH, default_d_ff
from toynn.engines import LlamaConfig
from toynn.errors import ToynnError
from toynn.formats import gguf
from toynn.formats.gguf import GGUFFile, Strings
from toynn.options import RecipeOptions
from toynn.recipes import LoRA, WarmStart

__all__ = ["add_parser"]

RANK = 8  # of the adapters whose memory is told


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("info", help="say what a GGUF file holds")
    parser.add_argument("file", type=model_file, metavar="FILE", help="a .gguf file")
    parser.add_argument("--batch", type=whole(1), default=1, help="sequences a step (%(default)s)")
    parser.add_argument(
        "--seq", type=whole(1), help="tokens a sequence (the model's context, but at most 512)"
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print one line for each thing that there is to know."""
    with gguf.open(arguments.file) as file:
        for name, value in describe(file, arguments.seq, arguments.batch):
            line = f"{name:24} {value}"
            print("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line))
    return 0


def describe(file: GGUFFile, seq: int | None, batch: int) -> list[tuple[str, str]]:
    """Return what there is to say about a file, as text by name."""
    metadata, architecture = file.metadata, file.architecture
    parameters = sum(prod(info.shape) for info in file.tensors.values())
    lines = [
        ("file", f"{file.path}, {_size(file.nbytes)}"),
        ("architecture", architecture),
        ("name", str(metadata.get("general.name", "none"))),
        ("parameters", f"{parameters:,} in {len(file.tensors)} tensors"),
        *_types(file),
        ("tokenizer", _tokenizer(metadata)),
    ]
    for key, value in metadata.items():
        if key.startswith(f"{architecture}."):
            lines.append((key.removeprefix(f"{architecture}."), _value(value)))
    return lines + _training(file, seq, batch)


def _types(file: GGUFFile) -> list[tuple[str, str]]:
    """Return a line for each type of tensor, the largest first."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for info in file.tensors.values():
        for i, amount in enumerate((info.nbytes, prod(info.shape), 1)):
            totals[info.type][i] += amount
    return [
        (f"  {type}", f"{parameters:,} in {count} tensors, {_size(nbytes)}")
        for type, (nbytes, parameters, count) in sorted(
            totals.items(), key=lambda row: row[1][::-1]
        )
    ]


def _tokenizer(metadata: dict[str, Any]) -> str:
    """Return the kind of a tokenizer and the number of its tokens."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind is None or not isinstance(tokens, Strings):
        return "none"
    pre = metadata.get("tokenizer.ggml.pre")
    return f"{kind}{f' ({pre})' if isinstance(pre, str) else ''}, {len(tokens):,} tokens"


def _training(file: GGUFFile, seq: int | None, batch: int) -> list[tuple[str, str]]:
    """Return the memory of a training step, or why there is none."""
    try:
        memory, length = engines.memory_for(file, seq, batch)
    except ToynnError as error:
        return [("training", f"not possible: {error}")]
    parts = ("weights", "moments", "gradients", "activations", "peak")
    return [
        ("training all weights", f"{batch} x {length} tokens a step"),
        *((f"  {part}", _size(getattr(memory, part))) for part in parts),
        *_adapters(file, RecipeOptions(t_seq=length, t_batch=batch)),
        *_new_model(file, length, batch),
    ]


def _adapters(file: GGUFFile, opts: RecipeOptions) -> list[tuple[str, str]]:
    """Return the memory of training adapters over the file, which stays as it is."""
    try:
        plain, again = (
            LoRA.memory_for(file, RANK, opts, "all-linear", checkpointing=checkpointing).peak
            for checkpointing in (False, True)
        )
    except ToynnError as error:
        return [("training adapters", f"not possible: {error}")]
    return [
        ("training adapters", f"rank {RANK}, all-linear, {opts.t_batch} x {opts.t_seq} tokens"),
        ("  peak beside the file", _size(plain)),
        ("  with checkpointing", _size(again)),
    ]


def _new_model(file: GGUFFile, length: int, batch: int) -> list[tuple[str, str]]:
    """Return the memory of what ``toynn train warm-start`` makes with the file as donor."""
    vocab, width = file.tensors["token_embd.weight"].shape
    d_model, heads, layers = (int(FRESH[name] or 0) for name in ("d_model", "heads", "layers"))
    d_ff = default_d_ff(d_model)
    config = LlamaConfig(vocab, d_model, heads, heads, d_ff, layers, length, donor_d_in=width)
    memory = WarmStart.memory_for(config, RecipeOptions(t_batch=batch, untied=True))
    return [
        ("training a new model", f"with it as donor, width {d_model}, {layers} layers"),
        ("  peak of that", _size(memory.peak)),
    ]


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value).strip("'")


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes / 1000:.1f} kB"
