"""``toynn chat``: a conversation in the terminal, formatted by the model's chat template."""

import contextlib
import json
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toynn.cli._commands import add_command
from toynn.cli._flags import show_first
from toynn.cli._writing import Clock, add_flags, opened, options, unescaped
from toynn.errors import ConfigError, DataError, ToynnError
from toynn.jobs import peers
from toynn.system.printing import counted, harmless, print_line, wrapped
from toynn.system.reading import read_bytes

if TYPE_CHECKING:
    from toynn.engines import SequenceEngine
    from toynn.formats.tokenizer import Tokenizer

#: Commands within the conversation, and what they do.
COMMANDS = {
    "/clear": "starts over",
    "/undo": "removes the last turn",
    "/regen": "draws the last answer anew",
    "/system": "TEXT changes the system message (@FILE reads it from a file)",
    "/save": "FILE writes the conversation as a row of data for training",
    "/help": "shows this help",
    "/exit": "(/quit, /bye or Ctrl-D) ends the chat",
}
ENDS = ("/exit", "/quit", "/bye")
HELP = (
    f"{', '.join(f'{name} {what}' for name, what in COMMANDS.items())}; Ctrl-C stops an answer; a "
    "space before a slash makes the line text; a \\ at the end of a line continues the line"
)
#: A slash and a word. A path has another slash, so it is text.
LIKE_A_COMMAND = re.compile(r"/[\w?!-]*(?=\s|$)")
Messages = list[dict[str, Any]]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "chat")
    parser.epilog = f"In the conversation: {HELP}."
    add_flags(parser, "--system")
    system = "system message; @FILE reads it from a file"
    parser.add_argument("--system", metavar="TEXT", help=system)
    show_first(
        parser,
        ("model", "adapter", "system", "max_tokens", "temp"),
        "toynn chat --model base.gguf --adapter runs/chats",
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Read what the user says, and print the model's answers, until the input ends."""
    content = arguments.system
    if content is not None:
        content = _system(content, escape=arguments.escape)
    talk = _Talk(arguments, *opened(arguments))
    talk.begin(content)
    asks = sys.stdin.isatty()
    if asks:
        print_line(wrapped(HELP))
    while (said := _said(asks)) is not None and said.rstrip() not in ENDS:
        try:
            if "\n" not in said and LIKE_A_COMMAND.match(said):
                ids = talk.command(*said.split(maxsplit=1))
            else:
                ids = talk.say(said.removeprefix(" ") if said.startswith(" /") else said)
        except ToynnError as error:  # the conversation is as it was
            _tell(str(error))
            continue
        if ids:
            speed = talk.answer(ids)
            if asks:
                print_line(speed)
    return 0


class _Talk:
    """A conversation with a model. An error leaves it unchanged."""

    def __init__(
        self, arguments: Namespace, tokenizer: "Tokenizer", engine: "SequenceEngine[Any]"
    ) -> None:
        from toynn.generation.drawing import Reader

        self._arguments, self._tokenizer, self._engine = arguments, tokenizer, engine
        self._reader = Reader(engine)
        self._system: Messages = []
        self._turns: Messages = []  # of the user and the assistant, alternately
        self._drawn = 0  # answers to the last message

    def begin(self, content: str | None) -> None:
        """Set the system message. Raises an error if the template refuses it."""
        system = [] if content is None else [{"role": "system", "content": content}]
        self._tokenizer.encode_chat([*system, {"role": "user", "content": "?"}])
        self._system = system

    def command(self, name: str, words: str = "") -> list[int] | None:
        """Obey a line that begins with a slash; return the ids to answer, if there are any."""
        if name not in COMMANDS or bool(words) != (name in ("/system", "/save")):
            raise ConfigError(_wrong(name, words))
        if name == "/help":
            print_line(wrapped(HELP))
        elif name == "/system":
            self.begin(_system(words.rstrip(), escape=self._arguments.escape))
        elif name == "/save":
            self._save(os.path.expanduser(words.rstrip()))
        elif name == "/regen":
            return self._again()
        else:
            del self._turns[0 if name == "/clear" else -2 :]
        return None

    def say(self, content: str) -> list[int] | None:
        """Add a message, unless it is blank; return the ids to answer."""
        if not content.strip():
            return None
        self._drawn = 0
        return self._fitting([*self._turns, {"role": "user", "content": content}])

    def answer(self, ids: list[int]) -> str:
        """Print the answer to the ids of the conversation; return its speed."""
        from toynn.generation.completion import complete

        clock, how = Clock(), options(self._arguments)
        how["seed"] += self._drawn  # another answer than before

        def show(text: str) -> None:
            clock.tick()
            print(harmless(text), end="", flush=True)

        completion = complete(
            self._engine,
            self._tokenizer,
            ids,
            **how,
            reader=self._reader,
            show=show,
            interruptible=True,
        )
        print(flush=True)
        self._turns.append({"role": "assistant", "content": completion.text})
        self._drawn += 1
        return clock.speed(completion.prompt_tokens, len(completion.drawn))

    def _again(self) -> list[int]:
        """Remove the last answer; return the ids to answer."""
        if not self._turns:
            raise ConfigError("/regen: there is no answer yet")
        return self._fitting(self._turns[:-1])

    def _save(self, path: str) -> None:
        from toynn.formats.files import write_atomically

        if not self._turns:
            raise ConfigError("/save: nothing was said yet")
        if os.path.lexists(path):
            raise ConfigError(f"/save: {path} exists already; name a new file")
        row = json.dumps({"messages": [*self._system, *self._turns]}, ensure_ascii=False)
        write_atomically(Path(path), f"{row}\n".encode(), DataError)
        _tell(f"{path}: {counted(len(self._turns), 'message')}")

    def _fitting(self, turns: Messages) -> list[int]:
        """Return the ids of a conversation, without its oldest turns if it exceeds the context."""
        context, forgotten = self._engine.context, 0
        while len(ids := self._encoded(turns[forgotten:])) >= context:
            forgotten += 2
            if forgotten >= len(turns):
                raise ConfigError(
                    f"the message is not sent: with it the conversation is {len(ids)} tokens long; "
                    f"the model sees at most {context}"
                )
        if forgotten:
            _tell(f"the first {forgotten} messages are forgotten: the model sees {context} tokens")
        self._turns = turns[forgotten:]
        return ids

    def _encoded(self, turns: Messages) -> list[int]:
        return self._tokenizer.encode_chat([*self._system, *turns])


def _tell(text: str) -> None:
    print_line(wrapped(f"toynn: {text}"))


def _wrong(name: str, words: str) -> str:
    """Return the answer to a line that looks like a command but is not one."""
    if name in COMMANDS:
        wants = "no words" if words else COMMANDS[name].partition(" ")[0]
        return f"{name} takes {wants}; got {words.strip()[:80]!r}. {HELP}"
    command = peers.meant(name[1:].lower(), [each[1:] for each in COMMANDS], peers.CHAT)
    near = f"; did you mean /{command}?" if command else "."
    return f"there is no command {name}{near} {HELP}"


def _system(typed: str, *, escape: bool) -> str:
    if not typed.startswith("@"):
        return unescaped(typed) if escape else typed
    path = Path(typed[1:])
    try:
        return read_bytes(path).decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8; byte {error.start} is not") from None


def _said(asks: bool) -> str | None:
    """Return the user's next message; None at the end of the input.

    A line that ends in a backslash continues in the next line, as in llama.cpp. If a terminal's
    input ends in the middle of a message, the message is dropped.
    """
    lines: list[str] = []
    while (line := _ask(("... " if lines else "> ") if asks else "")) is not None:
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)
    return "\n".join(lines) if lines and not asks else None


def _ask(prompt: str) -> str | None:
    """Return the next line of input; None at the end."""
    if prompt:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # history and editing, if available
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt, OSError):  # OSError: the terminal has gone
        return None
    except UnicodeDecodeError:
        raise DataError("standard input: expected UTF-8") from None
