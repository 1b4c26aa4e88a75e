"""``toynn info PATH``: the contents of a file or folder, and the memory to train it."""

from argparse import Namespace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.jobs.paths import local_path, model_file, path_or_name
from toynn.jobs.text_options import TOKENIZER
from toynn.options import whole


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
    from toynn.cli._info import facts

    named = arguments.tokenizer and model_file(arguments.tokenizer)
    for name, value in facts(local_path(arguments.path), arguments.seq, arguments.batch, named):
        line = f"{name:24} {value}"
        print("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line))
    return 0
