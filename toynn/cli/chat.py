"""``toynn chat``: turns in the terminal, by the model's chat template."""

import contextlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from toynn.cli._writing import Clock, add_flags, opened, options
from toynn.errors import ConfigError, DataError
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.completion import complete
from toynn.generation.drawing import Reader
from toynn.system.printing import harmless, print_line, wrapped
from toynn.system.reading import read_bytes

__all__ = ["add_parser"]

HELP = (
    "/clear begins anew, /undo takes the last turn back, /help says this, /exit or Ctrl-D ends; "
    "Ctrl-C ends an answer"
)
Messages = list[dict[str, Any]]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "talk with a model"
    parser = commands.add_parser("chat", help=help_, description=help_, allow_abbrev=False)
    parser.epilog = f"In the conversation: {HELP}."
    add_flags(parser)
    system = "system message; @FILE reads it from a file"
    parser.add_argument("--system", metavar="TEXT", help=system)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Read what the user says, and print what the model answers, until there is no more."""
    beginning: Messages = []
    if arguments.system is not None:
        beginning = [{"role": "system", "content": _system(arguments.system)}]
    tokenizer, engine = opened(arguments)
    messages, reader = list(beginning), Reader(engine)
    tokenizer.encode_chat([*messages, {"role": "user", "content": "?"}])  # is there a template
    asks = sys.stdin.isatty()
    if asks:
        print_line(wrapped(HELP))
    while (said := _ask("> " if asks else "")) is not None:
        if said == "/exit":
            break
        if said == "/help":
            print_line(wrapped(HELP))
        elif said in ("/clear", "/undo"):
            keep = len(beginning) if said == "/clear" else max(len(messages) - 2, len(beginning))
            del messages[keep:]
        elif said.strip():
            messages.append({"role": "user", "content": said})
            ids = _fitting(tokenizer, messages, len(beginning), engine.context)
            clock = Clock()

            def show(text: str, clock: Clock = clock) -> None:
                clock.tick()
                print(harmless(text), end="", flush=True)

            found = complete(
                engine,
                tokenizer,
                ids,
                **options(arguments),
                reader=reader,
                show=show,
                interruptible=True,
            )
            print(flush=True)
            messages.append({"role": "assistant", "content": found.text})
            if asks:
                print_line(clock.speed(found.prompt_tokens, len(found.drawn)))
    return 0


def _system(given: str) -> str:
    if not given.startswith("@"):
        return given
    path = Path(given[1:])
    try:
        return read_bytes(path).decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8; byte {error.start} is not") from None


def _ask(prompt: str) -> str | None:
    """Return the next line that is said; None at the end."""
    if prompt:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # history and editing, where they are to be had
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt, OSError):  # OSError: the terminal has gone
        return None
    except UnicodeDecodeError:
        raise DataError("standard input: expected UTF-8") from None


def _fitting(tokenizer: Tokenizer, messages: Messages, kept: int, context: int) -> list[int]:
    """Return the ids of a conversation; forget its oldest turns where it exceeds the context."""
    forgotten = 0
    while len(ids := tokenizer.encode_chat(messages)) >= context:
        if len(messages) - kept < 3:
            raise ConfigError(
                f"what was said is {len(ids)} tokens long; the model sees at most {context}"
            )
        del messages[kept : kept + 2]
        forgotten += 2
    if forgotten:
        print_line(
            f"toynn: the first {forgotten} messages are forgotten: the model sees {context} tokens"
        )
    return ids
