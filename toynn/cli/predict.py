"""``toynn predict --model RUN FILE...``: classes of pictures or texts, with probabilities."""

from argparse import Namespace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.jobs.options import BACKEND, THREADS
from toynn.jobs.text_options import RowOptions
from toynn.options import not_empty, options_of, typed_path, whole


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "predict")
    model = (
        "run folder of `toynn train vit` or classify; a .safetensors file with timm's names; a "
        "folder or GGUF file of a classifier of texts"
    )
    parser.add_argument("-m", "--model", required=True, type=typed_path, metavar="RUN", help=model)
    files = (
        "picture files, or folders with pictures at any depth; of texts: .txt (a text a line), "
        ".csv, .jsonl, .parquet, .conll"
    )
    parser.add_argument("files", nargs="*", type=not_empty, metavar="FILE", help=files)
    text = "classify this text; may be given several times"
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help=text)
    add(parser, options_of(RowOptions)["columns"])
    top = "print the N likeliest classes (default 5)"
    parser.add_argument("--top", type=whole(1), default=5, metavar="N", help=top)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON object for each")
    table = "print CSV: path or text, then classes and probabilities"
    form.add_argument("--csv", action="store_true", help=table)
    add(parser, THREADS)
    add(parser, BACKEND)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the likeliest classes of each picture or text; return 2 if one cannot be read."""
    from toynn.cli._predict import predict

    return predict(arguments)
