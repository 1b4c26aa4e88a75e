"""The command line: ``toynn COMMAND ...`` and ``python -m toynn COMMAND ...``.

    0              done
    1              `check --strict` has found doubtful rows, or `puzzles check` a wrong answer
    2              an error, in one line on stderr
    130, 143, 129  stopped by Ctrl-C, SIGTERM or SIGHUP
    141            the reader of stdout has gone

The purpose of some commands is to write files: train, convert, fuse, export, teach, report;
generate with --out, bench with --json, tape with --html. If stdout cannot be written, these
commands go on, and their exit code stays the same. All other commands end: silently with 141 if
the reader has gone, with 2 and an error if a disk is full. Text that cannot be written to stderr is
dropped.
"""

import errno
import os
import sys
import warnings
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from toynn import distributed
from toynn.cli._commands import COMMANDS, add_command
from toynn.cli._streams import Unwritten, streams
from toynn.cli._text import plain_warnings, print_error
from toynn.errors import ConfigError, ToynnError, flags_stay
from toynn.options import RENAMED, RecipeOptions
from toynn.system.garbage import uncollected
from toynn.system.platform import in_shell
from toynn.system.printing import print_line

__all__ = ["main", "parsed"]

DESCRIPTION = "Train and fine-tune transformers on the CPU you have, with kernels you can read."
#: Flags of files that may name the model and the data. Without such a flag, both are required.
NAMING = ("--config", "--resume", "--adapter")
OLD = {old.replace("_", "-"): now.replace("_", "-") for old, now in RENAMED.items()}


class Parser(ArgumentParser):
    """An argument parser that raises ConfigError, so that all errors look the same.

    The errors name the unknown word and what it may mean.
    """

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep the words for error messages."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return what --help shows."""
        from toynn.cli._flags import brief_help

        return brief_help(self) or super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        short = message.startswith("argument -n/")  # llama.cpp's -ngl 0 reads as -n gl
        if typed := (short or "required" in message) and meant(
            self._words, self._option_string_actions
        ):
            message = f"unrecognized arguments: {typed}" + (f"; and {message}" * (not short))
        from toynn.jobs import peers

        message = self._which(peers.hinted(message))
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def _which(self, message: str) -> str:
        """Add the known commands to a message that a command is missing; for a recipe likewise."""
        for action in self._actions:
            if isinstance(action, _SubParsersAction) and f"required: {action.metavar}" in message:
                message += f": one of {', '.join(action.choices)}"
        return message

    def known(self, words: Sequence[str]) -> Collection[str]:
        """Return the options of the command that the words name."""
        for action in self._actions:
            if isinstance(action, _SubParsersAction) and words and words[0] in action.choices:
                return action.choices[words[0]].known(words[1:])  # type: ignore[no-any-return]
        return self._option_string_actions


def meant(words: Sequence[str], known: Collection[str]) -> str:
    """Return the unknown options among words, each with the closest known one, or advice."""
    from toynn.jobs.peers import ADVICE, FLAGS, hint

    answers = []
    for word in words:
        name = word.partition("=")[0]
        bare = name.lstrip("-").replace("_", "-")
        long = name.startswith("--") and bare
        if name not in known and (long or (name[:1] == "-" and bare in {**FLAGS, **ADVICE})):
            flags = [each[2:] for each in known if each.startswith("--")]
            advice = hint(bare, flags, OLD, FLAGS, form="--{}".format)
            answers.append(f"{name} ({advice})" if advice else name)
    return ", ".join(answers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    Only --help, --help-all and --version raise SystemExit.
    """
    words, arguments = list(sys.argv[1:] if argv is None else argv), Namespace()
    with streams() as output, flags_stay():
        if "show_config" not in dir(sys.modules["toynn"]):
            from toynn.backends.config import other_toynn

            return _fail(ImportError(), other_toynn())
        try:
            if words[:1] == ["train"]:
                _join()
            try:
                arguments = parsed(words)
                output.matters = not _saves(arguments)
                with plain_warnings():
                    code: int = arguments.run(arguments)
            except SystemExit:
                output.flush()
                raise
            output.flush()
        except Unwritten as error:
            if error.code == errno.EPIPE:  # the reader of our output has gone, such as `head`
                return 141
            return _fail(error, f"standard output: cannot write: {error}")
        except (ToynnError, OSError) as error:
            return _fail(error, str(error))
        except MemoryError as error:
            return _fail(error, f"not enough memory: {error}{_hint(arguments)}")
        except KeyboardInterrupt as error:
            if distributed.current().fail(error) is not None:
                print_line("toynn: stopped")
            return 128 + next((number for number in error.args if isinstance(number, int)), 2)
        return code


def _saves(arguments: Namespace) -> bool:
    """Return whether the purpose of a command is to write files, not its output.

    The command's parser sets ``saves``: True, or the name of the argument that names the file.
    """
    saves: bool | str = getattr(arguments, "saves", False)
    return getattr(arguments, saves) is not None if isinstance(saves, str) else saves


@uncollected()
def parsed(argv: Sequence[str]) -> Namespace:
    """Parse words. Raises ConfigError for unknown ones."""
    argv, typed = list(argv), in_shell("toynn", *argv)
    if argv[:1] == ["train"]:
        from toynn.cli import train
        from toynn.jobs.made import OPTIONS

        argv[1:] = train.words_of(argv[1:])
        if argv[1:2] and argv[1].startswith("-") and argv[1] not in ("-h", "--help"):
            raise ConfigError(
                f"the following arguments are required: RECIPE: one of {', '.join(OPTIONS)}, "
                f"before {argv[1]} (see `toynn train --help`)"
            )
    named = any(word.partition("=")[0] in NAMING for word in argv)
    parser = _parser(argv[0] if argv else "", required=not named, recipes=argv[1:2])
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command = " ".join(["toynn", *argv[: 2 if argv[0] == "train" else 1]])
        hint = meant(unknown, parser.known(argv))
        hint = f": {hint}" if "(" in hint else ""
        raise ConfigError(
            f"unrecognized arguments: {' '.join(unknown)}{hint} (see `{command} --help`)"
        )
    arguments.typed = typed
    return arguments  # type: ignore[no-any-return]


def _fail(error: BaseException, message: str) -> int:
    """Print an error. If several processes have one, only the first of them prints."""
    message = " ".join([message, *getattr(error, "__notes__", ())])
    try:
        os.getcwd()
    except FileNotFoundError:
        message += "; the working directory was deleted: cd into an existing folder"
    said = distributed.current().fail(error, message)
    if said is not None:
        print_error(said)
    return 2


def _join() -> None:
    """Join the processes that mpiexec started with this one; only rank 0 prints."""
    if distributed.init().rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
        warnings.simplefilter("ignore")


def _hint(arguments: Namespace) -> str:
    """Return advice: the command's options that reduce memory."""
    from toynn.jobs.made import OPTIONS

    values = vars(arguments)
    options = {name: each for known in OPTIONS.values() for name, each in known.items()}
    there = [each for name, each in options.items() if each.memory and name in values]
    there.sort(key=lambda each: each.of[0] is not RecipeOptions)  # the batch first
    smaller = (each for each in there if each.memory == "smaller" and values[each.name] is not None)
    *most, last = [each.flag for each in smaller] or [""]
    ways = [f"a smaller {', '.join(most)}{' or ' if most else ''}{last}"] if last else []
    if values.get("memory") is None:  # --memory has tried these options already
        for each in there:
            if isinstance(each.memory, tuple) and values[each.name] == each.memory[0]:
                switch = each.flag if each.memory[1] is True else f"no {each.flag}"
                ways.append(switch if each.is_switch else f"{each.flag} {each.memory[1]}")
    return f"; try {', or '.join(ways)}" if ways else ""


def _parser(command: str | None = None, **of_train: Any) -> Parser:
    """Return the parser of all commands; or of one, whose module alone is imported.

    For any other word, and -h, it knows the commands by their names and lines.
    """
    parser = Parser(prog="toynn", description=DESCRIPTION, allow_abbrev=False)
    version = ""
    if command not in COMMANDS:  # it reads files of the installation
        from toynn.backends.config import release

        version = f"toynn {release()}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    alone = ("-h", "--help", "--version")
    flag = command is None or (command[:1] == "-" and command not in alone)
    if not flag and command not in COMMANDS:
        for name in COMMANDS:
            add_command(commands, name)
        return parser
    words = [word for word in COMMANDS if word == command] or COMMANDS
    for module in dict.fromkeys(COMMANDS[word][0] for word in words):
        options = of_train if module == "train" else {}
        import_module(f"toynn.cli.{module}").add_parser(commands, **options)
    return parser
