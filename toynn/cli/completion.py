"""``toynn completion bash``: Tab completion, as a script that the shell reads once.

    eval "$(toynn completion bash)"          in ~/.bashrc; zsh in ~/.zshrc

The script contains all commands, flags and choices, so pressing Tab does not start Python. For a
flag or a command that takes a path, the shell completes files.
"""

import shlex
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from typing import Any

from toynn.cli._commands import add_command

SHELLS = ("bash", "zsh")
#: Finds the command among a line's words; the words after it are its flags.
SCRIPT = """\
_toynn() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="toynn" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command $word" in
{commands}) command="$command $word" ;;
            *) break ;;
        esac
    done
    COMPREPLY=()
    case "$command $prev" in
{choices}
    esac
    case "$command" in
{words}
    esac
}}
complete -o default -F _toynn toynn
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "completion")
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the script."""
    from toynn.cli import _parser

    parsers = dict(_parsers(_parser(), "toynn"))
    names = [name for name in parsers if name != "toynn"]
    choices, words = [], []
    for name, parser in parsers.items():
        subcommands: list[str] = []
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                subcommands += action.choices
            elif action.option_strings and (values := _values(action)):
                pattern = "|".join(shlex.quote(f"{name} {each}") for each in action.option_strings)
                reply = _reply(values)
                choices.append(f"        {pattern}) {reply}; return ;;")
            elif action.choices:
                subcommands += map(str, action.choices)
        flags = [option for option in parser._option_string_actions if option.startswith("--")]
        reply = _reply([*subcommands, *flags])
        dashed = reply if subcommands else f'[[ "$cur" == -* ]] && {reply}'
        words.append(f"        {shlex.quote(name)}) {dashed} ;;")
    script = SCRIPT.format(
        commands="            " + "|".join(map(shlex.quote, names)),
        choices="\n".join(choices),
        words="\n".join(words),
    )
    print((ZSH if arguments.shell == "zsh" else "") + script, end="")
    return 0


def _values(action: Any) -> list[str]:
    """Return the words that may follow an option: its choices, or its ``words``."""
    return [str(each) for each in action.choices or getattr(action, "words", ())]


def _reply(words: Any) -> str:
    """Return the shell's command that offers words."""
    return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$cur"))'


def _parsers(parser: ArgumentParser, name: str) -> Iterator[tuple[str, ArgumentParser]]:
    """Yield all commands, each with its parser."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for word, inner in action.choices.items():
                yield from _parsers(inner, f"{name} {word}")
