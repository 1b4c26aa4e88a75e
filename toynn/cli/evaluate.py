"""``toynn eval``: a model's perplexity, loss, accuracy, and divergence from another."""

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from toynn import engines
from toynn.cli._flags import Once, add
from toynn.cli._models import add_model, opened
from toynn.engines import SequenceEngine
from toynn.formats import bases
from toynn.jobs.figures import SEQ, figures
from toynn.jobs.options import BACKEND, THREADS, named
from toynn.jobs.paths import local_path, text_model
from toynn.jobs.text import TextOptions
from toynn.options import RecipeOptions, whole
from toynn.system.printing import fact

__all__ = ["add_parser"]

DATA = (
    "text (perplexity), examples as for training (loss of completions), or multiple-choice "
    "questions (accuracy); of a folder, test.jsonl or valid.jsonl (default: the text that ships "
    "with CPython)"
)


class OneText(Once):
    """Stores what a model is measured on."""

    advice = "a model is measured on one"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "evaluate a model: perplexity, loss, accuracy, divergence from another"
    parser = commands.add_parser("eval", help=help_, description=help_, allow_abbrev=False)
    add_model(parser)
    parser.add_argument("--data", type=Path, metavar="PATH", action=OneText, help=DATA)
    against = "report the Kullback-Leibler divergence from this model"
    parser.add_argument("--against", type=local_path, metavar="PATH", help=against)
    seq = f"tokens per window or example, at most (default {SEQ}, or the model's context)"
    parser.add_argument("--seq", type=whole(4), metavar="N", help=seq)
    every = "evaluate prompts and user messages too, not only completions"
    parser.add_argument("--no-mask-prompt", action="store_true", help=every)
    add(parser, named(TextOptions, "question_delimiter"))
    parser.add_argument("--json", action="store_true", help="print one JSON object, all in nats")
    add(parser, THREADS)
    add(parser, BACKEND)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the figures."""
    options = RecipeOptions(n_threads=arguments.threads)
    tokenizer, engine = opened(arguments, options)
    against = None
    if arguments.against is not None:
        against = partial(_beside, arguments, options)
    start = time.perf_counter()
    found = figures(
        engine,
        tokenizer,
        arguments.data,
        arguments.seq,
        mask_prompt=not arguments.no_mask_prompt,
        against=against,
        delimiter=arguments.question_delimiter,
    )
    seconds = time.perf_counter() - start
    if against is not None:
        found["against"] = str(arguments.against)
    if "tokens" in found:
        found["tokens_per_second"] = found["tokens"] / seconds
    print(json.dumps(found) if arguments.json else _lines(found, seconds))
    return 0


def _beside(arguments: Namespace, options: RecipeOptions) -> SequenceEngine[Any]:
    """Return the model that --against names."""
    with bases.open(text_model(arguments.against)) as file:
        return engines.frozen(file, None, arguments.backend, options)


def _lines(found: Mapping[str, Any], seconds: float) -> str:
    """Return the figures as lines for people."""
    lines = [fact("data", str(found["data"]))]
    if "questions" in found:
        said = (
            f"{100 * found['accuracy']:.1f} % of {found['questions']:,} questions; by "
            f"length-normalized scores {100 * found['accuracy_normalized']:.1f} %"
        )
        lines += [fact("questions", f"joined to their choices {found['joined']}")]
        return "\n".join([*lines, fact("accuracy", said), f"time        {seconds:.1f} s"])
    what = f"{found['counted']:,} tokens"
    if "windows" in found:
        what += f", in the second halves of {found['windows']:,} windows of {found['window']}"
    said = f"{found['perplexity']:.4f} +/- {found['perplexity_error']:.5f}"
    lines.append(fact("perplexity", f"{said}, loss {found['loss']:.4f} nats, over {what}"))
    if "perplexity_every" in found:
        said = f"{found['perplexity_every']:.4f} +/- {found['perplexity_error_every']:.5f}"
        said += f", loss {found['loss_every']:.4f}, over all {found['counted_every']:,}"
        lines.append(fact("", said))
    if "loss_stop" in found:
        said = f"loss {found['loss_stop']:.4f} on {found['counted_stop']:,} stop tokens"
        lines.append(fact("", f"{said}, {found['loss_rest']:.4f} on the rest"))
    if "kl_mean" in found:
        base = f"{found['perplexity_base']:.4f} +/- {found['perplexity_error_base']:.5f}"
        kl = f"{found['kl_mean']:.6f} +/- {found['kl_error']:.6f} nats"
        same = f"{100 * found['same_top']:.3f} +/- {100 * found['same_top_error']:.3f} %"
        lines += [
            fact("against", f"{found['against']}: perplexity {base}"),
            fact("divergence", f"{kl}, at most {found['kl_largest']:.4f}"),
            fact("same top", f"{same} of the tokens"),
            fact("rms dp", f"{100 * found['rms_delta_p']:.3f} %"),
        ]
    rate = f", {found['tokens_per_second']:,.0f} tokens/s" if "tokens" in found else ""
    return "\n".join([*lines, f"time        {seconds:.1f} s{rate}"])
