"""A progress bar on a terminal; elsewhere, one plain line per report."""

import sys
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from toynn.train.metrics import Report

__all__ = ["Progress", "describe", "duration"]

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def duration(seconds: float) -> str:
    """Return seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe(report: Report, val_loss: float | None) -> str:
    """Return the figures of a report in words; val_loss is the last one known."""
    words = [
        f"{name} {figure:{form}}{unit}"
        for name, figure, form, unit in (
            ("loss", report.train_loss, ".4f", ""),
            ("val", val_loss, ".4f", ""),
            ("lr", report.learning_rate, ".1e", ""),
            ("norm", report.grad_norm, ".2f", ""),
            ("speed", report.tokens_per_second, ",.0f", " tokens/s"),
            ("skipped", report.skipped_updates, "d", ""),
        )
        if figure is not None
    ]
    return "  ".join(words)


class Progress:
    """Shows a run of so many steps on a stream; enter it, then call it with each report."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps = steps
        self._stream = sys.stderr if stream is None else stream
        self._bar: tqdm | None = None
        self._val_loss: float | None = None

    def __enter__(self) -> "Progress":
        if self._stream.isatty():
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
            self._val_loss = report.val_loss
        if self._bar is not None:
            self._bar.set_postfix_str(describe(report, self._val_loss))
            return
        done = report.iteration
        left = report.time * (self._steps - done) / done if done else None
        eta = f"  ETA {duration(left)}" if left else ""
        width = len(str(self._steps))
        words = describe(report, report.val_loss)
        print(f"step {done:{width}}/{self._steps}  {words}{eta}", file=self._stream, flush=True)
