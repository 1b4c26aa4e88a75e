"""The process of the rewards: it reads requests and writes answers, each a line of JSON.

It runs as a file and needs only Python's library. The first request brings the text of the user's
files: the text that was hashed is the text that runs. faulthandler ends the process if a request
takes longer than its limit; it writes the line that was running to stderr.
"""

import contextlib
import faulthandler
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Set
from itertools import islice
from types import ModuleType
from typing import Any

LONGEST = 300  # characters of an exception's text
LAST = 5  # seconds for what the user's threads and exit handlers do at the end
Answer = dict[str, Any]


class Server:
    """The loaded functions; it answers requests."""

    def __init__(self) -> None:
        self._functions: list[tuple[Callable[..., Any], str]] = []
        self._modules: dict[str, ModuleType] = {}

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """Return the answer to a request: of ``load``, or of ``call``."""
        if "load" in request:
            return self.load(**request["load"])
        function, path = self._functions[request["index"]]
        return call(function, path, request["values"])

    def load(self, path: str, source: str, name: str, arguments: list[Any] | None) -> Answer:
        """Add a function, or what it returns if it has arguments; return {}, or ``_raised``.

        A file runs once.
        """
        try:
            if path not in self._modules:
                sys.modules[path] = module = ModuleType(path)
                module.__file__ = path
                exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
                self._modules[path] = module
            function = getattr(self._modules[path], name, None)
            if not callable(function):
                raise LookupError(f"the file has no function {name}")
            made = function if arguments is None else function(*arguments)
        except (Exception, SystemExit) as error:
            return _raised(error, path)
        self._functions.append((made, path))
        return {}


def call(function: Callable[..., Any], path: str, values: Mapping[str, Any]) -> Answer:
    """Return {"values": floats and Nones}, {"wrong": what}, or what ``_raised`` returns.

    ``values`` are the keywords: prompts, completions, and columns.
    """
    n = len(values["completions"])
    try:
        result = function(**values)
        if isinstance(result, str | bytes | Mapping | Set) or not hasattr(result, "__iter__"):
            return {"wrong": f"expected a list of {n} numbers; got {type(result).__name__}"}
        rewards: list[Any] = list(islice(result, n + 1))
    except (Exception, SystemExit) as error:
        return _raised(error, path)
    if len(rewards) != n:
        got = len(rewards) if len(rewards) < n else "more"
        return {"wrong": f"expected {n} numbers, one for each completion; got {got}"}
    try:
        for i, reward in enumerate(rewards):
            if reward is not None and not math.isfinite(reward):
                raise ValueError
            rewards[i] = None if reward is None else float(reward)
    except Exception:  # also that of isfinite or float, of anything that is no number
        said = repr(rewards[i])[:LONGEST]
        return {"wrong": f"expected a finite number, or None, for completion {i}; got {said}"}
    return {"values": rewards}


def _raised(error: BaseException, path: str) -> Answer:
    """Return {"raised": text, "error": the exception}; the text names the line in the file."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")[:LONGEST]
    trace = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in trace if each.filename == path]
    return {"raised": f"line {lines[-1]}: {text}" if lines else text, "error": error}


def main() -> None:
    """Serve requests until there are no more."""
    requests = os.fdopen(os.dup(0), encoding="utf-8", newline="\n")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # what a function prints
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(2)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # if memory ends, Linux ends this process and not the training
    server = Server()
    for line in requests:
        request = json.loads(line)
        sys.path[:] = request.get("path", sys.path)
        faulthandler.dump_traceback_later(request["seconds"], exit=True, file=2)
        answer = server.answer(request)
        faulthandler.cancel_dump_traceback_later()
        answer.pop("error", None)
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except OSError:  # the parent was killed
            os._exit(1)
    faulthandler.dump_traceback_later(LAST, exit=True, file=nothing)


if __name__ == "__main__":
    main()
