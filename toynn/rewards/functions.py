"""Score completions by reward functions, in a process that may crash, hang and print."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, RewardError
from toynn.rewards import READY, child
from toynn.system.platform import kill_group, new_group

LOADING = 600  # seconds to start the process and run its files, which may import large libraries
GRACE = 5  # seconds after its limit until a process that has not ended itself is killed
ENDED = 3  # time-outs of a function that has never returned; then it is an error
_READY = str(Path(__file__).with_name("ready.py"))


class Rewards:
    """Reward functions, which score completions.

    A function is ``f(prompts, completions, **columns)``. It returns a number for each completion,
    or None, which is a missing reward.

    Parameters
    ----------
    specs
        "FILE.py:FUNCTION", or a ready one: exact, number, regex:PATTERN, json, length:CHARACTERS;
        see `toynn.rewards.ready`.
    weights
        The weights of the functions; by default 1.
    timeout
        The most seconds that a function may take for the completions of one call.
    in_process
        Run the functions in this process, for a debugger: no time limit, and a crash ends all.
    tell
        Gets a line when rewards are missing.

    Attributes
    ----------
    names
        A name for each function, all different.
    identity
        [spec with the file's full path, SHA-256 of the file's bytes] for each function. A run
        that resumes compares it. The files are read once: later changes have no effect.
    missing
        The number of rewards that were missing so far.

    Raises ConfigError for a spec, weights or a time limit that cannot be, and for a file that
    cannot be read or raises.
    """

    def __init__(
        self,
        specs: Sequence[str],
        weights: Sequence[float] | None = None,
        timeout: float = 60.0,
        in_process: bool = False,
        tell: Callable[[str], object] = warnings.warn,
    ) -> None:
        self._weights = np.array([1.0] * len(specs) if weights is None else weights, np.float64)
        fits = self._weights.shape == (len(specs),) and np.isfinite(self._weights).all()
        if not fits:
            raise ConfigError(
                "--reward-weights: expected a finite number for each function; got "
                f"{self._weights.tolist()} for {len(specs)}: {', '.join(specs) or 'none'}"
            )
        if not 0 < timeout <= 1e6:
            raise ConfigError(f"--reward-timeout {timeout}: expected seconds, more than 0")
        self._timeout, self._tell, self.missing = timeout, tell, 0
        self._specs, self._returned, self._late = specs, set[int](), [0] * len(specs)
        self._left_out: set[str] = set()
        read = [_read(spec) for spec in specs]
        functions, self.identity = [each for each, _ in read], [each for _, each in read]
        names = [each["name"] for each in functions]
        counts = [names[:i].count(name) for i, name in enumerate(names)]
        self.names = [
            f"{name}_{n + 1}" if n else name for name, n in zip(names, counts, strict=True)
        ]
        self._process = _Process(
            specs, functions, child.Server() if in_process or not specs else None
        )

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
    ) -> NDArray[np.float64]:
        """Return rewards (n, functions) of n completions; NaN where a reward is missing.

        Prompts and completions are texts or conversations; ``columns`` has lists of n values.
        Rewards are missing if a function returns None, takes too long, or raises after it has once
        returned. Raises RewardError if it raises before that, takes too long three times before
        that, or returns anything but a finite number or None for each completion. A column of
        values that JSON does not have is left out, after a line.
        """
        values, n = dict[str, Any](prompts=prompts, completions=completions), len(completions)
        if taken := values.keys() & columns.keys():
            raise RewardError(
                f"rewards: a column is called {min(taken)!r}, as an argument is: rename it"
            )
        for name, given in {**values, **columns}.items():
            try:
                values[name] = json.loads(json.dumps(list(given)))
            except (TypeError, ValueError, RecursionError) as error:  # a date, or bytes, of a table
                if name not in self._left_out:
                    self._tell(
                        f"rewards: column {name!r} is left out, as JSON has no such values: {error}"
                    )
                self._left_out.add(name)
        for name in self._left_out:
            values.pop(name, None)
        wrong = [name for name, each in values.items() if len(each) != n]
        if wrong:
            raise RewardError(f"rewards: expected {n} values in {', '.join(wrong)}")
        scores = np.full((n, len(self._specs)), np.nan)
        for i in range(len(self._specs) if n else 0):
            scores[:, i] = self._rewards(i, values)
        self.missing += int(np.isnan(scores).sum())
        return scores

    def totals(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weighted sums (n,) of rewards (n, functions).

        A missing reward adds nothing. The sum is NaN if all rewards of a completion are missing.
        """
        sums = np.nansum(scores * self._weights, axis=1)
        return np.where(np.isnan(scores).all(axis=1), np.nan, sums)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rewards(self, i: int, values: Mapping[str, Sequence[Any]]) -> list[float | None]:
        answer = self._process.ask({"index": i, "values": values}, self._timeout)
        if "values" in answer:
            self._returned.add(i)
            return list(answer["values"])
        late, n = "late" in answer, len(values["completions"])
        why = answer.get("wrong") or answer.get("raised")
        if late:
            self._late[i] += 1
            why = f"took more than {self._timeout:g} seconds (--reward-timeout)"
        if "wrong" in answer or (i not in self._returned and (not late or self._late[i] == ENDED)):
            times = f", {ENDED} times" if late else ""
            raise RewardError(f"{self._specs[i]}: {why}{times}") from answer.get("error")
        self._tell(f"{self._specs[i]}: {why}; {n} rewards are missing")
        return [None] * n


def identity(specs: Sequence[str]) -> list[list[str]]:
    """Return ``Rewards.identity`` of functions that do not run yet. Raises ConfigError."""
    return [_read(spec)[1] for spec in specs]


def _read(spec: str) -> tuple[dict[str, Any], list[str]]:
    """Return a function, as the process gets it, and its identity."""
    head, colon, value = spec.partition(":")
    if head in READY:
        arguments, digest = [value] if colon else [], ""
        if head == "json" and colon:
            value, (source, digest) = str(Path(value).resolve()), _contents(spec, value)
            arguments = [source]
        made = {"name": head, "path": _READY, "source": _contents(spec, _READY)[0]}
        return {**made, "arguments": arguments}, [head + colon + value, digest]
    path, _, name = spec.rpartition(":")
    if not path or not name.isidentifier():
        raise ConfigError(
            f"--reward {spec}: expected FILE.py:FUNCTION, or {', '.join(READY.values())}"
        )
    source, digest = _contents(spec, path)
    path = str(Path(path).resolve())
    own = {"name": name, "path": path, "source": source, "arguments": None}
    return own, [f"{path}:{name}", digest]


def _contents(spec: str, path: str) -> tuple[str, str]:
    """Return the text of a file, and the SHA-256 of its bytes."""
    try:
        raw = Path(path).read_bytes()
        return decode_source(raw), hashlib.sha256(raw).hexdigest()
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"--reward {spec}: {path} cannot be read: {error}") from error


class _Process:
    """The process of the functions; it starts again after it ended. Or a server in this one."""

    def __init__(
        self, specs: Sequence[str], functions: list[dict[str, Any]], server: child.Server | None
    ) -> None:
        self._specs, self._functions, self._server = specs, functions, server
        self._running: subprocess.Popen[bytes] | None = None
        self._load()

    def ask(self, request: Mapping[str, Any], seconds: float) -> child.Answer:
        """Return the answer to a request: that of the process, or {"late": True}."""
        if self._running is None and self._server is None:
            self._load()
        return self._exchange(request, seconds)

    def close(self) -> None:
        """End the process."""
        process, self._running = self._running, None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE)  # closes its input
            _kill(process)  # and what the functions started
            process.communicate()

    def _load(self) -> None:
        """Start the process and run the files. Raises ConfigError."""
        if self._server is None:
            self._running = subprocess.Popen(
                [sys.executable, "-P", child.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                **new_group(),  # Ctrl-C must not reach it
            )
        folders = [
            os.path.dirname(each["path"]) for each in self._functions if each["path"] != _READY
        ]
        path = [*folders, *(os.path.abspath(each) for each in sys.path)]
        for spec, loaded in zip(self._specs, self._functions, strict=True):
            answer = self._exchange({"path": path, "load": loaded}, LOADING)
            if answer:
                self.close()
                why = answer.get("raised", f"running its file took more than {LOADING} seconds")
                usage = f"; expected {READY[loaded['name']]}" if loaded["path"] == _READY else ""
                raise ConfigError(f"--reward {spec}: {why}{usage}") from answer.get("error")

    def _exchange(self, request: Mapping[str, Any], seconds: float) -> child.Answer:
        if self._server is not None:
            return self._server.answer(request)
        process, line, begun = self._running, b"", time.monotonic()
        assert process is not None and process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds + GRACE, _kill, [process])
        timer.start()
        try:
            with contextlib.suppress(OSError):  # it has ended
                process.stdin.write(json.dumps({**request, "seconds": seconds}).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            if line:
                answer: child.Answer = json.loads(line)
                return answer
            status = process.wait()
        finally:  # also if the wait is interrupted
            timer.cancel()
            if not line:
                _kill(process)
                self.close()
        if time.monotonic() - begun >= seconds:
            return {"late": True}
        why = ": killed, perhaps since memory ran out" if status == -9 else ""
        return {"raised": f"its process ended (exit status {status}){why}"}


def _kill(process: "subprocess.Popen[bytes]") -> None:
    kill_group(process.pid)
    process.kill()
