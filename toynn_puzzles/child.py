"""The process of one check: ``python -m toynn_puzzles.child NAME FILE VERDICT SECONDS``.

It writes its verdict to a file and exits with 0. If it takes too long or crashes, faulthandler
writes the line that was running to a file beside the verdict, and ends the process.
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

from toynn_puzzles import PUZZLES, Puzzle
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compiled import load


def examine(puzzle: Puzzle, path: Path, text: str, *, timed: bool = True) -> str:
    """Check a program; return what is wrong, or "" if it is solved."""
    answer = Answer(path, text, timed=timed)
    try:
        if puzzle.language == "py":
            answer.run()
        else:
            answer.names |= load(puzzle.language, path, text)
        puzzle.check(answer)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:  # raised by the check: it got a value that it cannot use
        return f"the check cannot use what the program returned.\n{type(error).__name__}: {error}"
    return ""


def main(name: str, file: str, verdict: str, seconds: str) -> None:
    """Check a file, and write the verdict."""
    path, out = Path(file), Path(verdict)
    with out.with_name("hung").open("w") as hung:
        faulthandler.enable(hung)
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=hung)
        said = examine(PUZZLES[name], path, path.read_text(encoding="utf-8", errors="replace"))
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
    out.write_text(json.dumps({"solved": not said, "said": said}))
    sys.stdout.flush()
    os._exit(0)  # a thread that the program started may run for ever


if __name__ == "__main__":
    main(*sys.argv[1:])
