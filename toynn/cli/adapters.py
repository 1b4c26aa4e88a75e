"""``toynn fuse`` and ``toynn export``: write a trained adapter or model in other formats."""

from argparse import ArgumentParser, Namespace
from typing import Any, get_args

from toynn.cli._adapters import add_adapters
from toynn.cli._commands import add_command
from toynn.cli._flags import MIXES_NEED, add, add_outtype
from toynn.formats.methods import Method
from toynn.jobs.paths import model_name
from toynn.jobs.text_options import TOKENIZER
from toynn.options import typed_path

WRITERS = ("gguf", "peft", "hf")


def add_parser(commands: Any) -> None:
    """Add both commands to the parser's commands."""
    parser = add_command(commands, "fuse")
    _add_files(parser, "FILE", "the new .gguf file", model=True)
    add_outtype(parser, None, "all matrices", " (default: matrices keep their types; see below)")
    parser.epilog = (
        "Of the quantized types, toynn writes q8_0 and q4_0. A merged matrix of another quantized "
        "type becomes q8_0. Quantizing a merged matrix rounds part of the adapter away; the "
        f"command prints how much. --outtype f16 or f32 keeps more of it. {MIXES_NEED}"
    )
    parser.set_defaults(run=run_fuse, saves=True)

    parser = add_command(commands, "export")
    forms = "format: the adapter for gguf or peft, or the model as a Hugging Face folder (hf)"
    parser.add_argument("--to", choices=WRITERS, required=True, help=forms)
    _add_files(parser, "PATH", "the new .gguf file, or the new folder", model=False)
    parser.set_defaults(run=run_export, saves=True)


def _add_files(parser: ArgumentParser, kind: str, out: str, *, model: bool) -> None:
    base = "base model: a .gguf file or Hugging Face folder (default: the base of --adapter's run)"
    parser.add_argument("-m", "--model", type=model_name, metavar="FILE", help=base)
    add_adapters(parser, required=model)
    add(parser, TOKENIZER)
    method = (
        "how to combine several adapters: cat concatenates their ranks and is exact, linear keeps "
        "the rank (default cat)"
    )
    parser.add_argument("--method", choices=get_args(Method), default="cat", help=method)
    parser.add_argument("--out", type=typed_path, required=True, metavar=kind, help=out)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")


def run_fuse(arguments: Namespace) -> int:
    """Write the model; print what was merged and how much rounding changed."""
    from toynn.cli._fuse import fuse

    return fuse(arguments)


def run_export(arguments: Namespace) -> int:
    """Write the adapter, or the model."""
    from toynn.cli._fuse import export

    return export(arguments)
