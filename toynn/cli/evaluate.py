"""``toynn eval``: a model's perplexity, loss, accuracy, preferences, divergence from another."""

from argparse import Namespace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import Once, add, show_first
from toynn.cli._models import add_model
from toynn.engines.objectives import KINDS, PARAMETERS
from toynn.jobs.encoder_options import ClassifyOptions
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.options import BACKEND, THREADS
from toynn.jobs.paths import data_name, path_or_name
from toynn.jobs.text_options import WINDOW, TextOptions
from toynn.jobs.vit_options import TOP, ViTOptions
from toynn.options import options_of, typed_path, whole

DATA = (
    "text (perplexity), examples as for training (loss of completions), multiple-choice questions "
    "(accuracy), or preferences with --loss; in a folder, test.jsonl or valid.jsonl. For a model "
    "of pictures: data of `toynn train vit` (default: the text that ships with CPython; for "
    "pictures, scikit-learn's digits)"
)
OF_LORA = options_of(LoRAOptions)


class OneText(Once):
    """Store the data that a model is measured on."""

    advice = "a model is measured on one"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "eval")
    add_model(parser)
    parser.add_argument("--data", type=data_name, metavar="PATH", action=OneText, help=DATA)
    against = "report the Kullback-Leibler divergence from this model"
    parser.add_argument("--against", type=path_or_name, metavar="PATH", help=against)
    seq = f"tokens per window or example, at most (default {WINDOW}, or the model's context)"
    parser.add_argument("--seq", type=whole(4), metavar="N", help=seq)
    every = "evaluate prompts and user messages too, not only completions"
    parser.add_argument("--no-mask-prompt", action="store_true", help=every)
    add(parser, options_of(TextOptions)["question_delimiter"])
    add(parser, options_of(TextOptions)["columns"])
    add(parser, options_of(ClassifyOptions)["separator"])
    corpus = "for vectors: find --data's queries' relevant ids in this file of id and text"
    parser.add_argument("--corpus", type=typed_path, metavar="FILE", help=corpus)
    loss = "measure preferences: this loss, margins and accuracy"
    parser.add_argument("--loss", choices=KINDS, help=loss)
    for name in PARAMETERS:
        add(parser, OF_LORA[name], default=None)
    batch = "with --loss: rows of --seq tokens at a time, as in training (default 1)"
    parser.add_argument("--batch", type=whole(1), metavar="N", help=batch)
    top = f"for pictures: count how often the class is among the N likeliest (default {TOP})"
    parser.add_argument("--top", type=whole(1), metavar="N", help=top)
    add(parser, options_of(ViTOptions)["skip_unreadable"])
    parser.add_argument("--json", action="store_true", help="print one JSON object; losses in nats")
    add(parser, THREADS)
    add(parser, BACKEND)
    first = ("model", "adapter", "data", "against", "loss", "json")
    show_first(parser, first, "toynn eval --adapter runs/chats --data test.jsonl")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the figures."""
    from toynn.cli._evaluate import evaluate

    return evaluate(arguments)
