"""``toynn puzzles``: programs with a blank to fill in, and checks that say what is wrong."""

import shlex
import textwrap
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toynn.cli._commands import add_command
from toynn.errors import ConfigError
from toynn.options import typed_path
from toynn.system.printing import counted, harmless

if TYPE_CHECKING:  # the case table is imported only when it is needed
    from toynn_puzzles import Puzzle
    from toynn_puzzles.folder import Folder

FOLDER = Path("toynn-puzzles")
#: Actions, and their help.
ACTIONS = {
    "list": "write the files that are missing, and list all puzzles",
    "check": "say what is wrong with your answer",
    "hint": "give the next hint",
    "why": "answer the question that a solved puzzle asks",
    "solution": "print the solution (with --spoil)",
    "reset": "write a puzzle's file again; your old file stays beside it",
}
SHOWN = 40  # most lines of a program's output that are printed


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(
        commands,
        "puzzles",
        epilog="\n".join(
            [
                *(f"{action:10}{said}" for action, said in ACTIONS.items()),
                "",
                "Example: toynn puzzles check 7. docs/puzzles.md has more.",
            ]
        ),
        formatter_class=RawDescriptionHelpFormatter,
    )
    what = "what to do (default list)"
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", help=what)
    which = "puzzles by number or name: 7 or rope"
    parser.add_argument("puzzles", nargs="*", metavar="PUZZLE", help=which)
    where = f"folder of your answers (default {FOLDER})"
    parser.add_argument("--dir", type=typed_path, default=FOLDER, metavar="DIR", help=where)
    parser.add_argument("--spoil", action="store_true", help="confirm: print the solution")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Carry out the action; return 1 if a checked answer is wrong."""
    from toynn_puzzles import find
    from toynn_puzzles.folder import Folder

    action, chosen = arguments.action, [find(word) for word in arguments.puzzles]
    folder = Folder(arguments.dir)
    if action == "list":
        if chosen:
            raise ConfigError(
                "puzzles list: it takes no puzzle; expected `toynn puzzles`, or check, hint, "
                "why, solution or reset before the number"
            )
        _list(folder)
        return 0
    if not chosen:
        raise ConfigError(f"puzzles {action}: name a puzzle: `toynn puzzles {action} 1`")
    if action == "solution" and not arguments.spoil:
        raise ConfigError(
            "puzzles solution: it would spoil the puzzle; "
            f"{_command('hint', chosen[0], folder)} gives away less. --spoil prints the solution"
        )
    if action == "check":
        return max(_check(folder, puzzle) for puzzle in chosen)
    for puzzle in chosen:
        if action == "hint":
            number, said = folder.hint(puzzle)
            print(
                f"Hint {number} of {len(puzzle.hints)} to puzzle {puzzle.number}, {puzzle.title}:"
            )
            _print(said)
        elif action == "why":
            if folder.state(puzzle) not in ("solved", "changed"):
                raise ConfigError(
                    f"puzzles why: puzzle {puzzle.number} is not solved yet; its question comes "
                    f"with the answer to it: {_command('check', puzzle, folder)}"
                )
            _print(" ".join(puzzle.why))
        elif action == "solution":
            print(puzzle.solution, end="")
        else:
            old = folder.reset(puzzle)
            print(
                f"{folder.path / puzzle.file}: written again; your answer, if any, is in {old.name}"
            )
    return 0


def _list(folder: "Folder") -> None:
    from toynn_puzzles import ABOUT, PUZZLES, ROADS

    written = folder.write()
    if written:
        print(f"{folder.path}: wrote {counted(len(written), 'file')}")
    states = {name: folder.state(puzzle) for name, puzzle in PUZZLES.items()}
    for road, names in ROADS.items():
        print(f"\n{road}: {ABOUT[road]}")
        for name in names:
            puzzle = PUZZLES[name]
            print(f"{puzzle.number:4}  {name:16} {puzzle.title:40} {states[name]}".rstrip())
    solved = sum(state in ("solved", "changed") for state in states.values())
    print(f"\n{solved} of {len(PUZZLES)} solved.{_next(folder)}")


def _next(folder: "Folder", after: int = 0) -> str:
    """Return a sentence about the next puzzle that is not solved, if there is one."""
    from toynn_puzzles import PUZZLES

    later = [puzzle for puzzle in PUZZLES.values() if puzzle.number > after]
    for puzzle in [*later, *PUZZLES.values()]:
        if folder.state(puzzle) in ("", "begun"):
            path = folder.path / puzzle.file
            return f" Next: edit {path}, then {_command('check', puzzle, folder)}."
    return ""


def _command(action: str, puzzle: "Puzzle", folder: "Folder") -> str:
    """Return the command of an action, as one types it."""
    beside = "" if folder.path == FOLDER else f" --dir {shlex.quote(str(folder.path))}"
    return f"`toynn puzzles {action} {puzzle.number}{beside}`"


def _check(folder: "Folder", puzzle: "Puzzle") -> int:
    verdict = folder.check(puzzle)
    printed = verdict.printed.splitlines()
    _print_lines(printed[:SHOWN])
    if len(printed) > SHOWN:
        print(f"({counted(len(printed) - SHOWN, 'more line')})")
    print(f"Puzzle {puzzle.number}, {puzzle.title}: {'solved' if verdict.solved else 'not yet'}")
    _print_lines(verdict.said.splitlines())
    if verdict.solved:
        _print(f"The same in toynn: toynn/{puzzle.same}")
        _print(f"{puzzle.why[0]} {_command('why', puzzle, folder)} answers.")
        _print(_next(folder, puzzle.number).strip())
    return 0 if verdict.solved else 1


def _print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are, long sentences wrapped."""
    for line in lines:
        _print(line) if len(line) > 80 and not line.startswith(" ") else print(harmless(line))


def _print(text: str) -> None:
    print(harmless(textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)))
