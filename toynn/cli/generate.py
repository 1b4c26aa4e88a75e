"""``toynn generate``: a model continues a text, or answers."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import toynn
from toynn import engines
from toynn.cli._numbers import real, whole
from toynn.cli._paths import text_model
from toynn.cli._run_flags import THREADS
from toynn.cli._text import harmless
from toynn.errors import ConfigError, DataError
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.generate import generate

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "let a model continue a text, or answer"
    parser = commands.add_parser("generate", help=help_, description=help_, allow_abbrev=False)
    model = "a .gguf file, or the folder of a run of `toynn train`"
    parser.add_argument("--model", type=Path, required=True, metavar="PATH", help=model)
    adapter = "an adapter of the model: a .gguf file, or a folder that PEFT wrote"
    parser.add_argument("--adapter", type=Path, metavar="PATH", help=adapter)
    prompt = "the text to continue; - reads it from standard input, without its last line break"
    parser.add_argument("--prompt", required=True, metavar="TEXT", help=prompt)
    chat = "the prompt is a user's message: write it as the model's chat template does"
    parser.add_argument("--chat", action="store_true", help=chat)
    for name, kind, default, meaning in (
        ("--max-tokens", whole(1), 256, "end after so many new tokens"),
        ("--temp", real(0), 0.8, "temperature; 0 takes the likeliest token"),
        ("--top-k", whole(0), 0, "draw from the K likeliest tokens; 0: from all"),
        ("--top-p", real(0, 1, above=True), 1.0, "draw from the likeliest that make up P"),
        ("--seed", whole(0), 0, "of the draws"),
    ):
        help_ = f"{meaning} (default {default})"
        parser.add_argument(name, type=kind, default=default, metavar="N", help=help_)
    THREADS.add_to(parser)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Write what the model writes to stdout as it comes, and how fast it was to stderr."""
    prompt = _prompt(arguments.prompt)
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    with gguf.open(text_model(arguments.model)) as file:
        tokenizer = Tokenizer.from_gguf(file)
        ids = _ids(tokenizer, prompt, chat=arguments.chat)
        adapter = None if arguments.adapter is None else adapters.load(arguments.adapter, file)
        engine = engines.frozen(file, adapter)
    if len(ids) > engine.context:
        raise ConfigError(
            f"--prompt: it is {len(ids)} tokens long; the model sees at most {engine.context}"
        )
    tokens = generate(
        engine,
        ids,
        arguments.max_tokens,
        temperature=arguments.temp,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop=tokenizer.eog,
    )
    times, stream = [time.perf_counter()], tokenizer.stream()
    stopped = False
    try:
        for token in tokens:
            times.append(time.perf_counter())
            print(harmless(stream.push(token)), end="", flush=True)
    except KeyboardInterrupt:
        stopped = True
    print(harmless(stream.end()), flush=True)
    print(_speed(len(ids), times), file=sys.stderr)
    return 130 if stopped else 0


def _prompt(given: str) -> str:
    """Return the text of --prompt."""
    try:
        text = sys.stdin.buffer.read().decode() if given == "-" else given
    except UnicodeDecodeError as error:
        raise DataError(
            f"--prompt -: expected UTF-8; got {error.object[error.start]:#04x} at byte "
            f"{error.start}: convert it, with iconv for example"
        ) from None
    text = text.removesuffix("\n") if given == "-" else text
    if not text:
        raise ConfigError("--prompt: it is empty; the model needs at least one token to go on from")
    return text


def _ids(tokenizer: Tokenizer, prompt: str, *, chat: bool) -> list[int]:
    """Return the ids that the model is to read."""
    if chat:
        return tokenizer.encode_chat([{"role": "user", "content": prompt}])
    ids = tokenizer.encode(prompt)
    if tokenizer.add_eos and ids[-1] == tokenizer.eos:
        ids.pop()  # the text goes on
    return ids


def _speed(prompt: int, times: list[float]) -> str:
    """Say how long the prompt took, and how fast tokens came after the first of them."""
    if len(times) == 1:
        return f"{prompt} tokens read, none written"
    new = len(times) - 2
    rate = f", {new / (times[-1] - times[1]):.1f} tokens/s" if new else ""
    return f"{prompt} tokens read in {times[1] - times[0]:.2f} s, {len(times) - 1} written{rate}"
