"""The flags of ``toynn generate`` and ``toynn chat``: the model and the sampling."""

import re
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toynn.cli import _models
from toynn.cli._flags import add
from toynn.cli._models import add_model
from toynn.jobs.options import BACKEND, PRECISION, THREADS
from toynn.numerics.precision import PRECISIONS
from toynn.options import RecipeOptions, real, whole

if TYPE_CHECKING:
    from toynn.engines import SequenceEngine
    from toynn.formats.tokenizer import Tokenizer

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
ESCAPE = re.compile(r"""\\([nrt'"\\]|x[0-9a-fA-F]{2})""")

#: Flag, parser, default, help, and the name of the argument of ``complete``.
DRAWING = (
    ("--max-tokens", whole(1), 256, "maximum number of new tokens", "max_tokens"),
    ("--temp", real(0), 0.8, "temperature; 0 takes the likeliest token", "temperature"),
    ("--top-k", whole(0), 0, "sample from the N likeliest tokens; 0: from all", "top_k"),
    (
        "--top-p",
        real(0, 1, above=True),
        1.0,
        "sample from the likeliest tokens of total probability N",
        "top_p",
    ),
    (
        "--min-p",
        real(0, 1),
        0.0,
        "sample from tokens at least N times as likely as the likeliest",
        "min_p",
    ),
    (
        "--repeat-penalty",
        real(0, above=True),
        1.0,
        "divide positive logits of recent tokens by N, multiply negative ones",
        "repeat_penalty",
    ),
    ("--repeat-last-n", whole(0), 64, "number of recent tokens to penalize", "repeat_last_n"),
    ("--seed", whole(0), 0, "seed of the sampling", "seed"),
)


def add_flags(parser: ArgumentParser, text: str) -> None:
    """Add the flags of a model and of sampling; ``text`` is the flag of the prompt."""
    add_model(parser)
    for name, kind, default, meaning, _ in DRAWING:
        names = ("-n", name) if name == "--max-tokens" else (name,)
        help_ = f"{meaning} (default {default})"
        parser.add_argument(*names, type=kind, default=default, metavar="N", help=help_)
    stop = "stop before this text; may be given several times"
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help=stop)
    escape = rf"replace \n, \t, \r, \\, \', \" and \xHH in {text} and --stop, as in llama.cpp"
    parser.add_argument("-e", "--escape", action="store_true", help=escape)
    add(parser, THREADS)
    add(parser, BACKEND)
    exact = (
        "precision of matrix products; medium: prompts in bfloat16, new tokens in 8 bits over "
        "Q4_0, Q8_0, Q4_K and Q6_K, if the CPU can"
    )
    add(parser, replace(PRECISION, words=PRECISIONS, help=exact))


def options(arguments: Namespace) -> dict[str, Any]:
    """Return the flags as arguments of ``toynn.generation.complete``."""
    values = {name: getattr(arguments, flag[2:].replace("-", "_")) for flag, *_, name in DRAWING}
    stop = [unescaped(each) if arguments.escape else each for each in arguments.stop]
    return values | {"stop": stop}


def unescaped(text: str) -> str:
    """Replace escapes by the characters that they mean; other backslashes stay.

    Source: string_process_escapes in llama.cpp's common/common.cpp.
    """
    return ESCAPE.sub(lambda each: ESCAPES.get(each[1]) or chr(int(each[1][1:], 16)), text)


def opened(arguments: Namespace) -> "tuple[Tokenizer, SequenceEngine[Any]]":
    """Return the tokenizer and the model, with its adapters."""
    options = RecipeOptions(precision=arguments.precision, n_threads=arguments.threads)
    return _models.opened(arguments, options)


class Clock:
    """The times at which the pieces of a text came; ``tick`` adds one."""

    def __init__(self) -> None:
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        """Add the current time."""
        self._times.append(time.perf_counter())

    def speed(self, prompt: int, tokens: int) -> str:
        """Return the time that the prompt took, and the speed of the tokens after the first."""
        times = self._times
        if len(times) == 1 or not tokens:
            return f"{prompt} tokens read, none written"
        rate = f", {(tokens - 1) / (times[-1] - times[1]):.1f} tokens/s" if tokens > 1 else ""
        return f"{prompt} tokens read in {times[1] - times[0]:.2f} s, {tokens} written{rate}"
