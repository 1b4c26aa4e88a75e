"""Carry out ``toynn generate``: read prompts, write completions."""

import itertools
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from toynn.cli._streams import input_bytes
from toynn.cli._writing import Clock, opened, options, unescaped
from toynn.data import jsonl
from toynn.engines import SequenceEngine
from toynn.errors import ConfigError, DataError
from toynn.formats.files import replacing
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.completion import Completion, complete, complete_all, prompt_ids
from toynn.generation.drawing import Drawn
from toynn.system.printing import counted, harmless, print_line
from toynn.system.reading import read_bytes, readable

Prompt = str | list[dict[str, Any]]


def generate(arguments: Namespace) -> int:
    """Print the model's text to stdout as it comes, then its speed to stderr."""
    as_json = arguments.json or arguments.prompts is not None or arguments.out is not None
    if arguments.logprobs is not None and not as_json:
        raise ConfigError("--logprobs: it needs JSON output: add --json, --prompts or --out")
    if arguments.num_samples > 1 and not arguments.temp:
        raise ConfigError("--num-samples: with --temp 0 all would be the same: set --temp above 0")
    if arguments.out is not None and arguments.out.exists():
        raise ConfigError(f"--out {arguments.out}: the file exists already; name a new one")
    prompts: list[tuple[str, Prompt]]
    if arguments.prompts is None:
        prompts = [("--prompt", _prompt(arguments.prompt, escape=arguments.escape))]
    else:
        prompts = list(_prompts(arguments.prompts))
    tokenizer, engine = opened(arguments)
    read = [_ids(engine, tokenizer, where, prompt, arguments.chat) for where, prompt in prompts]
    if as_json:
        return _lines(arguments, tokenizer, engine, [prompt for _, prompt in prompts], read)
    for number, seed in enumerate(_seeds(arguments), 1):
        if arguments.num_samples > 1:
            print(f"--- {number} of {arguments.num_samples}, seed {seed} ---", flush=True)
        clock = Clock()

        def show(text: str, clock: Clock = clock) -> None:
            clock.tick()
            print(harmless(text), end="", flush=True)

        drawing = options(arguments) | {"seed": seed}
        completion = complete(engine, tokenizer, read[0], **drawing, show=show, interruptible=True)
        print(flush=True)
        print_line(clock.speed(completion.prompt_tokens, len(completion.drawn)))
        if completion.ended == "interrupt":
            return 130
    return 0


def _seeds(arguments: Namespace) -> range:
    """Return the seed of each continuation of a prompt."""
    return range(arguments.seed, arguments.seed + arguments.num_samples)


def _lines(
    arguments: Namespace,
    tokenizer: Tokenizer,
    engine: SequenceEngine[Any],
    prompts: Sequence[Prompt],
    read: Sequence[list[int]],
) -> int:
    """Print a line of JSON for each prompt."""
    interrupted = False
    with ExitStack() as stack:
        file = None
        if arguments.out is not None:
            file = stack.enter_context(replacing(arguments.out, "completions", DataError))
        completions = _completions(arguments, tokenizer, engine, read)
        samples = itertools.product(prompts, _seeds(arguments))
        for (prompt, seed), completion in zip(samples, completions, strict=False):  # or interrupted
            told = _object(tokenizer, prompt, completion)
            told |= {"seed": seed} if arguments.num_samples > 1 else {}
            line = json.dumps(told, ensure_ascii=False)
            if file is None:
                print(line, flush=True)
            else:
                file.write(f"{line}\n".encode())
            interrupted = interrupted or completion.ended == "interrupt"
    if interrupted:
        return 130
    if arguments.out is not None:
        print(f"{arguments.out}: {counted(len(prompts) * arguments.num_samples, 'completion')}")
    return 0


def _completions(
    arguments: Namespace,
    tokenizer: Tokenizer,
    engine: SequenceEngine[Any],
    read: Sequence[list[int]],
) -> Iterator[Completion]:
    """Yield the completion of each prompt; an interrupted one is the last."""
    drawing = options(arguments) | {
        "log_probabilities": arguments.logprobs,
        "interruptible": True,
    }
    samples = arguments.num_samples
    if arguments.batch > 1 < len(read) * samples:
        yield from complete_all(
            engine, tokenizer, read, batch=arguments.batch, samples=samples, **drawing
        )
        return
    for ids, seed in itertools.product(read, _seeds(arguments)):
        completion = complete(engine, tokenizer, ids, **drawing | {"seed": seed})
        yield completion
        if completion.ended == "interrupt":
            return


def _object(tokenizer: Tokenizer, prompt: Prompt, completion: Completion) -> dict[str, Any]:
    """Return a completion's object in the JSON output."""
    line: dict[str, Any] = {
        "prompt" if isinstance(prompt, str) else "messages": prompt,
        "completion": completion.text,
        "ended": completion.ended,
        "prompt_tokens": completion.prompt_tokens,
        "tokens": len(completion.drawn),
    }
    told = [_token(tokenizer, drawn) for drawn in completion.drawn if drawn.log_probability <= 0]
    return line | {"log_probabilities": told} if told else line


def _token(tokenizer: Tokenizer, drawn: Drawn) -> dict[str, Any]:
    def of(id: int, value: float) -> dict[str, Any]:
        stream = tokenizer.stream(special=True)  # as within a text: with the space before a word
        return {"id": id, "text": stream.push(id) + stream.end(), "log_probability": value}

    told = of(drawn.id, drawn.log_probability)
    return told | {"likeliest": [of(*each) for each in drawn.likeliest]}


def _prompt(typed: str, *, escape: bool) -> str:
    """Return the text of --prompt."""
    try:
        text = input_bytes().decode() if typed == "-" else typed
    except UnicodeDecodeError as error:
        raise DataError(
            f"--prompt -: expected UTF-8; got {error.object[error.start]:#04x} at byte "
            f"{error.start}: convert it, with iconv for example"
        ) from None
    if typed == "-" and not text:
        raise ConfigError("--prompt -: standard input is empty; expected a text to continue")
    return unescaped(text) if escape else text


def _prompts(path: Path) -> Iterator[tuple[str, Prompt]]:
    """Yield each prompt of a file with its place. Raises DataError, which names the line."""
    name = "standard input" if str(path) == "-" else str(path)
    if path.suffix in (".jsonl", ".json"):
        prompts: Iterator[tuple[str, Prompt]] = (each[:2] for each in jsonl.prompts(path))
    else:
        prompts = _texts(name, _content(path))
    empty = True
    for each in prompts:
        yield each
        empty = False
    if empty:
        raise DataError(f"{name}: expected a prompt per line; got none")


def _content(path: Path) -> bytes:
    if str(path) == "-":
        return input_bytes()
    if path.is_fifo():  # /dev/stdin, <(program)
        with readable(path):
            return path.read_bytes()
    return read_bytes(path)


def _texts(name: str, content: bytes) -> Iterator[tuple[str, Prompt]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}:{number}: not UTF-8 text: byte {error.object[error.start]:#04x}"
            ) from None
        if text.strip():
            yield f"{name}:{number}", text


def _ids(
    engine: SequenceEngine[Any], tokenizer: Tokenizer, where: str, prompt: Prompt, chat: bool
) -> list[int]:
    """Return a prompt's ids. Raises ConfigError if it is empty or exceeds the context."""
    if prompt == "" and (chat or not tokenizer.encode(prompt)):  # a BOS alone would do
        raise ConfigError(f"{where}: it is empty; the model needs at least one token to continue")
    if chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    try:
        ids = prompt_ids(tokenizer, prompt)
    except DataError as error:  # an invalid message, for example
        raise DataError(f"{where}: {error}") from error
    if len(ids) > engine.context:
        raise ConfigError(
            f"{where}: it is {len(ids)} tokens long; the model sees at most {engine.context}"
        )
    return ids
