"""A progress bar on a terminal; elsewhere, one plain line per report."""

import os
import sys
from dataclasses import replace
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from toynn.train.metrics import Report

__all__ = ["Progress", "duration"]

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def duration(seconds: float) -> str:
    """Return seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _words(report: Report, unit: str, *names: str) -> str:
    """Return the figures of a report that are known, of those named."""
    forms = {
        "loss": ("loss {:.4f}", report.train_loss),
        "val": ("val {:.4f}", report.val_loss),
        "accuracy": ("accuracy {:.1%}", report.val_accuracy),
        "lr": ("lr {:.1e}", report.learning_rate),
        "norm": ("norm {:.2f}", report.grad_norm),
        "speed": ("{:,.0f} " + f"{unit}/s", report.tokens_per_second),
        "skipped": ("skipped {}", report.skipped_updates),
    }
    known = (forms[name] for name in names)
    return "  ".join(form.format(figure) for form, figure in known if figure is not None)


def _is_terminal(stream: TextIO) -> bool:
    """Whether a bar can be drawn: some terminals, as in containers, do not know their width."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except OSError:
        return False


class Progress:
    """Shows a run of so many steps on a stream; enter it, then call it with each report."""

    def __init__(self, steps: int, stream: TextIO | None = None, unit: str = "tokens") -> None:
        self._steps, self._unit = steps, unit
        self._stream = sys.stderr if stream is None else stream
        self._bar: tqdm | None = None
        self._evaluated: Report | None = None  # the last one with an evaluation

    def __enter__(self) -> "Progress":
        if _is_terminal(self._stream):
            self._bar = tqdm(
                total=self._steps, file=self._stream, bar_format=BAR, dynamic_ncols=True
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()

    def __call__(self, report: Report) -> None:
        """Show a report."""
        if report.val_loss is not None:
            self._evaluated = report
        if self._bar is not None:
            newest = report
            if (last := self._evaluated) is not None:
                newest = replace(report, val_loss=last.val_loss, val_accuracy=last.val_accuracy)
            words = _words(newest, self._unit, "loss", "val", "accuracy", "speed")
            self._bar.set_postfix_str(words)
            return
        done = report.iteration
        left = report.time * (self._steps - done) / done if done else None
        eta = f"  ETA {duration(left)}" if left else ""
        width = len(str(self._steps))
        names = ("loss", "val", "accuracy", "lr", "norm", "speed", "skipped")
        words = _words(report, self._unit, *names)
        print(f"step {done:{width}}/{self._steps}  {words}{eta}", file=self._stream, flush=True)
