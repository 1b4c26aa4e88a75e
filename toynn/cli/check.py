"""``toynn check --data D --model M``: check data as training would read them."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.jobs.encoder_options import ClassifyOptions
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.paths import data_name, path_or_name
from toynn.jobs.text_options import TOKENIZER, TextOptions
from toynn.options import options_of, whole


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "check")
    data = "files or folders, as for `toynn train --data`; each is checked alone"
    options = options_of(TextOptions)
    option = replace(options["data"], help=data, metavar="PATH")
    add(parser, option, type=data_name, required=True)
    recipe = "classify: labelled texts; of several files the first is to train on (default lora)"
    parser.add_argument("--recipe", choices=("lora", "classify"), default="lora", help=recipe)
    add(parser, options_of(ClassifyOptions)["separator"])
    model = "model with the tokenizer and chat template (default: lengths in characters)"
    parser.add_argument("-m", "--model", type=path_or_name, metavar="PATH", help=model)
    add(parser, TOKENIZER)
    seq = "tokens per row, to which examples are cut and packed (default "
    seq += f"{LoRAOptions.seq}, with a model)"
    parser.add_argument("--seq", type=whole(1), metavar="N", help=seq)
    for name in ("columns", "max_line", "max_unpacked"):
        add(parser, options[name])
    every = "check as if prompts had loss, too"
    parser.add_argument("--no-mask-prompt", action="store_true", help=every)
    seed = "seed that draws the held-out part, as in the run (default 0)"
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help=seed)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    strict = (
        "exit with 1 for rows that repeat, leak or are cut, and for unknown tokens, odd roles and "
        "special tokens that the model does not know"
    )
    parser.add_argument("--strict", action="store_true", help=strict)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print what was found; return 2 if training refuses the data, 1 if --strict finds doubts."""
    from toynn.cli._check import check

    return check(arguments)
