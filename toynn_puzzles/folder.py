"""The learner's folder: a file for each puzzle, and a record of what is solved.

A check runs in its own process, so that an endless loop can be ended and a crash ends only the
check.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from toynn.errors import ConfigError, DataError
from toynn.formats.files import write_atomically
from toynn.system.platform import kill_group, new_group
from toynn_puzzles import PUZZLES, Puzzle

PROGRESS = "progress.json"
PRINTED = 2**16  # most bytes that are kept of a program's output
GRACE = 600  # seconds to start a process on a busy machine, in addition to the check's own
DRAIN = 2  # seconds to read the output; a process that the program started may print for ever


@dataclass(frozen=True)
class Verdict:
    """The result of a check: whether the puzzle is solved, the message, the program's output."""

    solved: bool
    said: str
    printed: str = ""


class Folder:
    """A learner's folder. Raises DataError for a progress file that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._progress: dict[str, dict[str, Any]] = {"solved": {}, "hints": {}}
        if self._file.is_file():
            try:
                read = json.loads(self._file.read_bytes())
                self._progress = {name: dict(read[name]) for name in self._progress}
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{self._file}: expected what `toynn puzzles` writes, got {error!r}; "
                    "delete the file to begin anew: your answers stay"
                ) from error

    @property
    def _file(self) -> Path:
        return self.path / PROGRESS

    def write(self) -> list[Path]:
        """Write the missing files; return them. Existing files stay."""
        self.path.mkdir(parents=True, exist_ok=True)
        written = []
        for puzzle in PUZZLES.values():
            path = self.path / puzzle.file
            if not path.exists():
                write_atomically(path, puzzle.blank.encode())
                written.append(path)
        return written

    def reset(self, puzzle: Puzzle) -> Path:
        """Write a puzzle's file anew; return the path of the old one."""
        path = self.path / puzzle.file
        number = 1
        while (old := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        if path.exists():
            path.rename(old)
        write_atomically(path, puzzle.blank.encode())
        return old

    def state(self, puzzle: Puzzle) -> str:
        """Return "solved", "changed" (changed after it was solved), "begun" or ""."""
        path = self.path / puzzle.file
        text = path.read_bytes() if path.is_file() else b""
        if puzzle.name in self._progress["solved"]:
            return "solved" if self._progress["solved"][puzzle.name] == _hash(text) else "changed"
        return "begun" if text and text != puzzle.blank.encode() else ""

    def hint(self, puzzle: Puzzle) -> tuple[int, str]:
        """Return the number and text of the next hint; after the last hint, the last again."""
        number = min(self._progress["hints"].get(puzzle.name, 0) + 1, len(puzzle.hints))
        self._progress["hints"][puzzle.name] = number
        self._save()
        return number, puzzle.hints[number - 1]

    def check(self, puzzle: Puzzle) -> Verdict:
        """Check the learner's file. Raises ConfigError if it is missing."""
        path = self.path / puzzle.file
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; `toynn puzzles` writes it")
        text = path.read_bytes()
        verdict = checked(puzzle, path)
        if verdict.solved:
            self._progress["solved"][puzzle.name] = _hash(text)
            self._save()
        return verdict

    def _save(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps(self._progress, indent=1).encode() + b"\n")


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def checked(puzzle: Puzzle, path: Path, seconds: float | None = None) -> Verdict:
    """Check a file in another process, within ``seconds`` (None: the puzzle's own limit)."""
    seconds = seconds or puzzle.seconds
    package = str(Path(__file__).parents[1])
    match = [package, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, match))}
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "verdict.json")
        words = ["toynn_puzzles.child", puzzle.name, path.absolute(), said, seconds]
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", *map(str, words)],  # -u: a crash flushes nothing
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            **new_group(),
        )
        assert process.stdout is not None
        kept = bytearray()
        reader = threading.Thread(target=_keep, args=(process.stdout, kept), daemon=True)
        reader.start()
        try:
            code = process.wait(seconds + GRACE)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = None
        finally:
            kill_group(process.pid)  # what the program forked may wait for ever
            reader.join(DRAIN)
        printed = kept.decode(errors="replace")
        if said.is_file() and code == 0:
            return Verdict(**json.loads(said.read_bytes()), printed=printed)
        hung = Path(folder, "hung")
        trace = hung.read_text(errors="replace") if hung.is_file() else ""
    line = _line_of(trace, path)
    if code is None or "Timeout" in trace:
        return Verdict(False, f"ended after {seconds:g} seconds{line}\nAn endless loop?", printed)
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Verdict(
        False,
        f"the program crashed ({name}){line}\nDid it read or write outside of an array?",
        printed,
    )


def _keep(stream: IO[bytes], kept: bytearray) -> None:
    """Read a stream to its end and close it; keep the first PRINTED bytes."""
    with stream:
        while part := stream.read1(PRINTED):  # type: ignore[attr-defined]
            kept += part[: max(0, PRINTED - len(kept))]


def _line_of(trace: str, path: Path) -> str:
    """Return the line of a file that a dump of faulthandler names."""
    name = re.escape(str(path.absolute()))
    match = re.search(rf'File "{name}", line (\d+)', trace)
    if not match:
        return "."
    number, lines = int(match[1]), path.read_text("utf-8", "replace").splitlines()
    return f", in line {number}: {lines[number - 1].strip()}"
