"""A learner's program: run it, and report its errors with their lines."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Wrong(Exception):
    """An answer is wrong; the message tells the learner why."""


@dataclass
class Answer:
    """A learner's program.

    ``names`` are the functions of a compiled program, or those that ``text`` defines. If ``timed``
    is False, checks do not measure time.
    """

    path: Path
    text: str
    names: dict[str, Any] = field(default_factory=dict)
    timed: bool = True

    def run(self) -> None:
        """Run the program, which defines its functions. Raises Wrong."""
        try:
            code = compile(self.text, str(self.path), "exec")
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise Wrong(f"line {error.lineno}: {line}\n{error.msg}") from error
        self.names["__name__"] = "puzzle"
        self._guarded(lambda: exec(code, self.names))

    def __call__(self, name: str, *arguments: Any, changes: tuple[int, ...] = ()) -> Any:
        """Call a function of the program with copies of arrays; return its result.

        ``changes`` are the indices of arguments that the function may change; it gets these arrays
        themselves.

        Raises Wrong if the function is missing, raises, or changes any other array.
        """
        function = self.function(name)
        copies = [x if i in changes else _copied(x) for i, x in enumerate(arguments)]
        result = self._guarded(lambda: function(*copies))
        for i, (before, after) in enumerate(zip(arguments, copies, strict=True)):
            if isinstance(before, np.ndarray) and not _same(before, after):
                named = (
                    getattr(function, "names", None) or [*inspect.signature(function).parameters]
                )[i]
                raise Wrong(
                    f"{name} changed its argument {named}. Others still need {named}: "
                    f"make a new array, with `{named} = {named} - ...`, not `{named} -= ...`."
                )
        return result

    def several(self, name: str, outputs: str, *arguments: Any) -> dict[str, Any]:
        """Call a function that returns these outputs, in this order: "dq, dk, dv"."""
        result, names = self(name, *arguments), outputs.split(", ")
        if len(names) == 1:
            result = (result,)
        if not isinstance(result, (tuple, list)) or len(result) != len(names):
            got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _kind(result)
            raise Wrong(f"{name} should return {outputs}: {len(names)} values. It returned {got}.")
        named = dict(zip(names, result, strict=True))
        for output, value in named.items():
            if value is ...:
                raise Wrong(f"{output} is still `...`: fill in this blank.")
        return named

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the program. Raises Wrong if there is none of this name."""
        named = self.names.get(name)
        if not callable(named):
            raise Wrong(f"the program no longer has the function {name}, which the check calls.")
        return named

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return work()
        except Wrong:
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too
            raise Wrong(self._told(error)) from error

    def _told(self, error: BaseException) -> str:
        """Return an error's message, with its line in the program and the arrays' shapes there."""
        frame = _own_frame(error.__traceback__, str(self.path))
        if frame is None:
            return f"{type(error).__name__}: {error}"
        place = f"line {frame.tb_lineno}: {self.text.splitlines()[frame.tb_lineno - 1].strip()}"
        if isinstance(error, NotImplementedError):
            return f"{place}\nFill in this blank."
        (said,) = traceback.format_exception_only(type(error), error)[-1:]
        arrays = [
            f"{name} {tuple(value.shape)}"
            for name, value in frame.tb_frame.f_locals.items()
            if isinstance(value, np.ndarray)
        ]
        shapes = f"\nShapes there: {', '.join(arrays)}." if arrays else ""
        return f"{place}\n{said.strip()}{shapes}"


def _own_frame(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Return the last frame of a traceback that is in the learner's file."""
    named = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            named = trace
        trace = trace.tb_next
    return named


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _kind(value: Any) -> str:
    return "None" if value is None else f"one {type(value).__name__}"
