"""``toynn convert FOLDER --out m.gguf``: a Hugging Face folder as a GGUF file."""

import sys
from argparse import Namespace
from collections import Counter
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import MIXES_NEED, add, add_outtype
from toynn.jobs.paths import local_path, model_file, path_or_name
from toynn.jobs.text_options import TOKENIZER
from toynn.options import typed_path
from toynn.system.printing import WIDTH, columns, harmless


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "convert")
    folder = "folder with config.json, safetensors files, tokenizer.json or tokenizer.model"
    parser.add_argument("folder", type=path_or_name, metavar="FOLDER", help=folder)
    add_outtype(parser, "f16", "matrices", "; norms and biases are f32 (default f16)")
    parser.epilog = MIXES_NEED
    parser.add_argument(
        "--out", type=typed_path, required=True, metavar="FILE", help="new .gguf file"
    )
    add(parser, TOKENIZER)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")
    parser.set_defaults(run=run, saves=True)


def run(arguments: Namespace) -> int:
    """Write the file; print its contents."""
    from toynn.engines.converting import convert, unlike
    from toynn.formats.tokenizer.folder import has_tokenizer

    shown, folder = sys.stderr.isatty(), local_path(arguments.folder)
    tokenizer = arguments.tokenizer and model_file(arguments.tokenizer)
    try:
        types = convert(
            folder,
            arguments.out,
            arguments.outtype,
            overwrite=arguments.overwrite,
            progress=_show if shown else None,
            tokenizer=tokenizer,
        )
    finally:
        if shown:
            _over("")
    counts = Counter(types.values())
    said = ", ".join(f"{count} {type}" for type, count in counts.most_common())
    megabytes = arguments.out.stat().st_size / 1e6
    print(harmless(f"{arguments.out}: {len(types)} tensors ({said}), {megabytes:.1f} MB", ""))
    if tokenizer is None and not has_tokenizer(folder):
        print(
            "the folder has no tokenizer, so the file has none: llama.cpp takes only token ids; "
            "--tokenizer names one"
        )
    for what in unlike(arguments.out):
        print(f"llama.cpp's logits will differ: {what}")
    return 0


def _show(number: int, count: int, name: str) -> None:
    """Show which tensor is being written, on one line."""
    _over(f"converting {number + 1}/{count} {name}")


def _over(text: str) -> None:
    """Overwrite the terminal's current line; an empty text clears it."""
    width = (columns(sys.stderr) or WIDTH) - 1  # terminals differ at the last column
    end = "" if text else "\r"
    print(f"\r{text[:width]:{width}}{end}", end="", file=sys.stderr, flush=True)
