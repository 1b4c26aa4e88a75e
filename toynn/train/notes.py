"""Notes of a run for its report: run.json, beside metrics.jsonl and config.toml.

Commands and machine are noted when it begins, memory, time by op and how it ended when it ends. It
is written at both moments: a run that is killed has the first.
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
from toynn.train.options import METRICS, LoopOptions, Result

__all__ = ["Notes"]

#: What of the configuration of the build a report tells.
TOLD = ("python", "platform", "ISA level in use", "threads", "matmul precision")


class Notes(dict[str, Any]):
    """The object of run.json, to be changed and written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():  # of a run that is resumed
            self.update(next(iter(lines_of(path.read_bytes())), {}))

    def began(
        self, command: str | None, step: int, options: LoopOptions, sources: Any, recipe: Any
    ) -> None:
        """Note that a run begins, or goes on, behind a step."""
        started = datetime.now().astimezone().isoformat(" ", "seconds")
        session = {"command": command, "started": started, "from": step}
        known = self.get("sessions")
        self["sessions"] = [*(known if isinstance(known, list) else ()), session]
        self["machine"] = _machine(recipe)
        self["steps"], self["state"] = options.steps, "running"
        name = options.metrics[0]
        figure, more = METRICS[name]
        self["best_by"] = {"metric": name, "figure": f"val_{figure}", "more": more}
        self.pop("why", None)
        if sources:
            self["sources"] = dict(sources)

    def ended(self, recipe: Any, result: Result) -> None:
        """Note what a run took, and how it ended."""
        session = recipe.engine.session
        with suppress(AttributeError, ToynnError):  # not every engine can say it, nor at any time
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
        """Note what a run ended by."""
        asked = isinstance(error, KeyboardInterrupt | GeneratorExit)
        self["state"] = "stopped" if asked else "failed"
        self["why"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    def write(self) -> None:
        """Write run.json. Raises CheckpointError."""
        write_atomically(self._path, json.dumps(self).encode() + b"\n")


def _machine(recipe: Any) -> dict[str, str]:
    """Return what a run is computed on, and how."""
    build = describe()
    with suppress(AttributeError):  # a recipe need not have a session
        session = recipe.engine.session
        build["threads"] = str(get_num_threads(session.n_threads))
        build["matmul precision"] = session.matmul_precision
    memory = total_memory()
    return {
        "processor": processor(),
        **({} if memory is None else {"memory": size(memory)}),
        **{name: build[name] for name in TOLD},
    }
