"""Notes about a run for its report: run.json.

Commands and machine are noted at the start of a run; memory, time by op and the outcome at its end.
The file is written at both moments, so a killed run has the first notes.
"""

import json
import signal
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from toynn.backends.config import describe
from toynn.backends.threads import get_num_threads
from toynn.errors import ToynnError
from toynn.formats.files import write_atomically
from toynn.runs.record import lines_of
from toynn.system.machine import processor, total_memory
from toynn.system.printing import size
from toynn.train.options import METRICS, LoopOptions
from toynn.train.state import Result

#: Keys of the build's configuration that a report shows.
TOLD = ("python", "platform", "ISA level in use", "threads", "matmul precision")


class Notes(dict[str, Any]):
    """The object in run.json."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():  # of a resumed run
            self.update(next(iter(lines_of(path.read_bytes())), {}))

    def began(
        self, command: str | None, step: int, options: LoopOptions, sources: Any, recipe: Any
    ) -> None:
        """Note that a run begins or resumes, after ``step``."""
        started = datetime.now().astimezone().isoformat(" ", "seconds")
        session = {"command": command, "started": started, "from": step}
        sessions = self.get("sessions")
        self["sessions"] = [*(sessions if isinstance(sessions, list) else ()), session]
        self["machine"] = _machine(recipe)
        self["steps"], self["state"] = options.steps, "running"
        name = options.metrics[0]
        figure, more = METRICS[name]
        self["best_by"] = {"metric": name, "figure": f"val_{figure}", "more": more}
        self.pop("why", None)
        if sources:
            self["sources"] = dict(sources)

    def ended(self, recipe: Any, result: Result) -> None:
        """Note the memory and time of a run, and how it ended."""
        session = recipe.session
        with suppress(AttributeError, ToynnError):  # not every engine can report these
            memory = session.memory()
            names = ("weights", "moments", "gradients", "activations", "mapped")
            self["memory"] = {name: getattr(memory, name) for name in names}
            kept = ("op", "calls", "ms", "share")
            rows = session.profile(session.trained).rows
            self["profile"] = [{name: getattr(row, name) for name in kept} for row in rows]
        self["best_by"]["step"] = result.best_iteration
        self["state"] = "early" if result.stopped_early else "done"
        if result.interrupted:
            self["state"] = "stopped"
            self["why"] = f"by {signal.Signals(result.signal or signal.SIGINT).name}"

    def failed(self, error: BaseException) -> None:
        """Note the error that ended a run."""
        asked = isinstance(error, KeyboardInterrupt | GeneratorExit)
        self["state"] = "stopped" if asked else "failed"
        self["why"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    def write(self) -> None:
        """Write run.json. Raises CheckpointError."""
        write_atomically(self._path, json.dumps(self).encode() + b"\n")


def _machine(recipe: Any) -> dict[str, str]:
    """Return a description of the machine and the build."""
    build = describe()
    with suppress(AttributeError):  # a recipe may lack a session
        session = recipe.session
        build["threads"] = str(get_num_threads(session.n_threads))
        build["matmul precision"] = session.matmul_precision
    memory = total_memory()
    return {
        "processor": processor(),
        **({} if memory is None else {"memory": size(memory)}),
        **{name: build[name] for name in TOLD},
    }
